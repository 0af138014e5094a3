// The threads of generated CPU code: one pool for all callers of all models in a process.
//
// TVM's runtime gives each thread that calls a pool of its own, with a worker a core, pinned to the same cores as those of
// every other caller, and no pool outlives fork(). Here, callers share the workers. A parallel loop is a job of as many tasks as there are
// cores; its caller takes tasks, too, so that it never waits for workers that are busy with another's job, and more callers
// than cores never mean more running threads than callers plus cores. A forked child finds no pool, and makes its own.
//
// Code that calls operators of PyTorch's between its loops runs these in PyTorch's threads, those of OpenMP: threads of two pools
// would take turns on the same cores, each looking for work while the other has it.
//
// Nothing here depends on the model: it is compiled once, and linked into the generated code of every one. The first that is
// loaded serves all (tkc/runtime/parallel.py).

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <tvm/ffi/c_api.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace {

// As tvm/runtime/c_backend_api.h has them; TVM's own headers are of C++20.
struct GroupEnv {
  void* sync_handle;
  int32_t num_task;
};
using Body = int (*)(int task, GroupEnv* env, void* data);
using ParallelLaunch = int (*)(Body body, void* data, int num_task);

// How long a worker looks for the next loop before it sleeps: the loops of one call follow each other closely.
constexpr std::chrono::microseconds kSpin{1000};

struct Job {
  Job(Body body, void* data, int tasks) : body(body), data(data), env{nullptr, tasks} {}

  bool open() const { return next.load(std::memory_order_relaxed) < env.num_task; }

  void Run() {
    for (int task; (task = next.fetch_add(1, std::memory_order_relaxed)) < env.num_task;) {
      if (body(task, &env, data) == 0) continue;
      TVMFFIObjectHandle raised = nullptr;
      TVMFFIErrorMoveFromRaised(&raised);
      TVMFFIObjectHandle none = nullptr;
      if (!error.compare_exchange_strong(none, raised) && raised != nullptr) TVMFFIObjectDecRef(raised);
      failed.store(true, std::memory_order_relaxed);
    }
  }

  // What the launch returns: -1, with the error of the first task that failed, where one did.
  int Outcome() {
    if (!failed.load(std::memory_order_relaxed)) return 0;
    if (TVMFFIObjectHandle raised = error.load()) {
      TVMFFIErrorSetRaised(raised);
      TVMFFIObjectDecRef(raised);
    }
    return -1;
  }

  Body body;
  void* data;
  GroupEnv env;
  std::atomic<int> next{0};     // the first task that nobody has taken
  std::atomic<int> helpers{0};  // workers at it; they join under the pool's mutex
  std::atomic<bool> failed{false};
  std::atomic<TVMFFIObjectHandle> error{nullptr};  // the first task's that failed
};

thread_local bool in_loop = false;  // a loop within a loop is computed by the thread that meets it

class Pool {
 public:
  explicit Pool(int threads) : threads_(threads) {}

  int Run(Body body, void* data, int num_task) {
    int tasks = num_task > 0 ? num_task : threads_;
    Job job(body, data, tasks);
    bool shared = tasks > 1 && threads_ > 1 && !in_loop;
    if (shared) Post(&job);
    bool outer = in_loop;
    in_loop = true;
    job.Run();
    in_loop = outer;
    if (shared) {
      Withdraw(&job);
      while (job.helpers.load(std::memory_order_acquire) != 0) sched_yield();
    }
    return job.Outcome();
  }

 private:
  void Post(Job* job) {
    bool wake;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!started_) Start();
      jobs_.push_back(job);
      posted_.fetch_add(1, std::memory_order_release);
      wake = sleeping_ > 0;
    }
    if (wake) awake_.notify_all();
  }

  void Withdraw(Job* job) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (Job*& each : jobs_) {
      if (each != job) continue;
      each = jobs_.back();
      jobs_.pop_back();
      return;
    }
  }

  // The job with the fewest helpers of those that have tasks left, so that workers spread over callers.
  Job* Join() {
    std::lock_guard<std::mutex> lock(mutex_);
    Job* best = nullptr;
    for (Job* job : jobs_) {
      if (job->open() && (best == nullptr || job->helpers.load() < best->helpers.load())) best = job;
    }
    if (best != nullptr) best->helpers.fetch_add(1, std::memory_order_relaxed);
    return best;
  }

  void Start() {
    started_ = true;
    try {
      for (int i = 1; i < threads_; ++i) std::thread([this] { Work(); }).detach();
    } catch (const std::system_error&) {
      // The system gives no more threads: those that there are do the work, the caller at least.
    }
  }

  [[noreturn]] void Work() {
    in_loop = true;
    pthread_setname_np(pthread_self(), "tkc-worker");
    for (;;) {
      uint32_t seen = posted_.load(std::memory_order_acquire);
      if (Job* job = Join()) {
        job->Run();
        job->helpers.fetch_sub(1, std::memory_order_release);
      } else {
        Await(seen);
      }
    }
  }

  void Await(uint32_t seen) {
    auto until = std::chrono::steady_clock::now() + kSpin;
    do {
      for (int i = 0; i < 16; ++i) {
        if (posted_.load(std::memory_order_acquire) != seen) return;
        sched_yield();
      }
    } while (std::chrono::steady_clock::now() < until);
    std::unique_lock<std::mutex> lock(mutex_);
    ++sleeping_;
    awake_.wait(lock, [&] { return posted_.load(std::memory_order_relaxed) != seen; });
    --sleeping_;
  }

  const int threads_;
  std::mutex mutex_;
  std::condition_variable awake_;
  std::vector<Job*> jobs_;            // those with tasks that nobody may have taken yet
  std::atomic<uint32_t> posted_{0};   // how many jobs there ever were
  int sleeping_ = 0;
  bool started_ = false;
};

int number_of_threads = 1;
// Never freed: workers sleep in it until the process ends. A forked child has none of its threads, so it drops it.
std::atomic<Pool*> pool{nullptr};

Pool* ThePool() {
  Pool* found = pool.load(std::memory_order_acquire);
  if (found != nullptr) return found;
  Pool* made = new Pool(number_of_threads);
  if (pool.compare_exchange_strong(found, made)) return made;
  delete made;
  return found;
}

int Launch(Body body, void* data, int num_task) { return ThePool()->Run(body, data, num_task); }

// OpenMP as PyTorch has loaded it (GNU's, whose entry compilers call for a parallel region); nothing in a forked child, where its
// threads are gone and it does not know.
struct OpenMP {
  void (*parallel)(void (*body)(void*), void* data, unsigned threads, unsigned flags);
  int (*max_threads)();
};
OpenMP openmp{};
ParallelLaunch without_openmp = Launch;
ParallelLaunch chosen = Launch;

int LaunchOnOpenMP(Body body, void* data, int num_task) {
  if (openmp.parallel == nullptr || in_loop) return without_openmp(body, data, num_task);
  int threads = openmp.max_threads();  // one, too, is what the caller has asked PyTorch for
  Job job(body, data, num_task > 0 ? num_task : threads);
  auto work = [](void* data) {
    in_loop = true;
    static_cast<Job*>(data)->Run();
    in_loop = false;
  };
  openmp.parallel(work, &job, static_cast<unsigned>(threads), 0);
  return job.Outcome();
}

bool FindOpenMP() {
  OpenMP found{
      reinterpret_cast<decltype(OpenMP::parallel)>(dlsym(RTLD_DEFAULT, "GOMP_parallel")),
      reinterpret_cast<decltype(OpenMP::max_threads)>(dlsym(RTLD_DEFAULT, "omp_get_max_threads")),
  };
  if (found.parallel == nullptr || found.max_threads == nullptr) return false;
  openmp = found;
  static std::once_flag once;
  std::call_once(once, [] { pthread_atfork(nullptr, nullptr, [] { openmp = {}; }); });
  return true;
}

}  // namespace

extern "C" {

// What generated code calls; absent where it has no parallel loop, or is for another device.
extern ParallelLaunch __TVMBackendParallelLaunch __attribute__((weak));

// What other objects that are linked into generated code have their loops run by (products.cc), and by how many threads.
int tkc_launch(Body body, void* data, int num_task) { return chosen(body, data, num_task); }
int tkc_threads() { return in_loop ? 1 : chosen == LaunchOnOpenMP && openmp.max_threads != nullptr ? openmp.max_threads() : number_of_threads; }

// tkc_share_threads(threads, address, openmp): has this code's loops run by the pool whose entry is at `address`, or, where that is
// 0, by one of its own with so many threads; in OpenMP's threads instead where `openmp` holds and they are found. Returns the
// pool's entry's address.
__attribute__((visibility("default"))) int __tvm_ffi_tkc_share_threads(
    void*, const TVMFFIAny* args, int32_t, TVMFFIAny* result) {
  auto entry = reinterpret_cast<ParallelLaunch>(args[1].v_int64);
  number_of_threads = static_cast<int>(args[0].v_int64);
  if (entry == nullptr) {
    static std::once_flag once;
    std::call_once(once, [] {
      pthread_atfork(nullptr, nullptr, [] { pool.store(nullptr); in_loop = false; });
      Dl_info self;  // never unloaded: its workers run until the process ends
      if (dladdr(reinterpret_cast<void*>(Launch), &self)) dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE);
    });
    entry = Launch;
  }
  without_openmp = entry;
  bool in_openmp = args[2].v_int64 != 0 && FindOpenMP();
  chosen = in_openmp ? LaunchOnOpenMP : entry;
  if (&__TVMBackendParallelLaunch != nullptr) __TVMBackendParallelLaunch = chosen;
  result->type_index = kTVMFFIInt;
  result->v_int64 = reinterpret_cast<int64_t>(entry);
  return 0;
}

}  // extern "C"
