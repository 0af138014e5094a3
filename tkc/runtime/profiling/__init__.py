"""Where the time of a call goes: its functions measured one by one, and named to profilers."""
