// Control flow of generated code: choices and loops over functions of the program, and checks of what a model asserts, at run time.
//
// Relax has no loop, and its `If` keeps what surrounds it out of dataflow blocks, where fusion and kernel rules work. A frontend
// writes branches and loop bodies as private functions and calls these here with them (tkc/contracts.py says with what);
// passes/lowering/machine_calls.py hands over the virtual machine that runs the functions. A loop holds the state of one step, and no
// stack grows with its steps.
//
// Nothing here depends on the model: it is compiled once, and linked into the generated code of every one that calls it.

#include <tvm/ffi/any.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/string.h>

#include <chrono>
#include <string>
#include <vector>

namespace {

using tvm::ffi::Any;
using tvm::ffi::AnyView;
using tvm::ffi::Array;
using tvm::ffi::Function;
using tvm::ffi::Shape;
using tvm::ffi::String;
using tvm::ffi::Tensor;

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kBetweenSignals{50};

const std::string kNumber = "{number}";
constexpr const char* kAsserted = "<tkc asserted>";  // tkc/runtime/loaded_code.py finds the message between two of them

// Runs a function of the program: `machine` is the virtual machine's address.
Any Invoke(AnyView machine, AnyView function, const std::vector<AnyView>& arguments) {
  static const Function invoke = Function::GetGlobalRequired("vm.builtin.invoke_closure");
  std::vector<AnyView> all{machine, function};
  all.insert(all.end(), arguments.begin(), arguments.end());
  Any result;
  invoke.CallPacked(all.data(), static_cast<int32_t>(all.size()), &result);
  return result;
}

// A truth value: a number of the host, or a tensor of one element, for which the kernels that compute it are waited for.
bool Holds(AnyView condition) {
  static const Function synchronize = Function::GetGlobalRequired("runtime.Device_StreamSync");
  static const Function read = Function::GetGlobalRequired("vm.builtin.read_if_cond");
  if (auto number = condition.as<int64_t>()) return *number != 0;
  Tensor tensor = condition.cast<Tensor>();
  DLDevice device = tensor.device();
  if (device.device_type != kDLCPU) {
    synchronize(device, reinterpret_cast<int64_t>(TVMFFIEnvGetStream(device.device_type, device.device_id)));
  }
  return read(tensor).cast<bool>();
}

// Lets Python's signals end a loop that does not.
class Interruptible {
 public:
  void Check() {
    Clock::time_point now = Clock::now();
    if (now < next_) return;
    next_ = now + kBetweenSignals;
    if (TVMFFIEnvCheckSignals() != 0) throw tvm::ffi::EnvErrorAlreadySet();
  }

 private:
  Clock::time_point next_ = Clock::now() + kBetweenSignals;
};

// (machine, condition, function, other, *operands): what `function` makes of the operands if the condition holds, or `other`.
Any Choose(const AnyView* args, int32_t count) {
  return Invoke(args[0], Holds(args[1]) ? args[2] : args[3], std::vector<AnyView>(args + 4, args + count));
}

// (machine, begin, step, *operands): `begin` and `step` return (condition, *state); `step` takes the operands and the state.
Any While(const AnyView* args, int32_t count) {
  std::vector<AnyView> operands(args + 3, args + count);
  Interruptible loop;
  Array<Any> made = Invoke(args[0], args[1], operands).cast<Array<Any>>();
  while (Holds(made[0])) {
    loop.Check();
    std::vector<AnyView> arguments = operands;
    for (size_t i = 1; i < made.size(); ++i) arguments.push_back(made[i]);
    made = Invoke(args[0], args[2], arguments).cast<Array<Any>>();
  }
  return Array<Any>(made.begin() + 1, made.end());
}

// (machine, steps, begin, step, *operands): `begin` and `step` return the state; `step` takes its number, from 0, the operands
// and the state.
Any Repeat(const AnyView* args, int32_t count) {
  int64_t steps = args[1].cast<Shape>()[0];
  std::vector<AnyView> operands(args + 4, args + count);
  Interruptible loop;
  Array<Any> state = Invoke(args[0], args[2], operands).cast<Array<Any>>();
  for (int64_t i = 0; i < steps; ++i) {
    loop.Check();
    Shape number{i};
    std::vector<AnyView> arguments{number};
    arguments.insert(arguments.end(), operands.begin(), operands.end());
    for (const Any& each : state) arguments.push_back(each);
    state = Invoke(args[0], args[3], arguments).cast<Array<Any>>();
  }
  return state;
}

// (message, value, condition, ...): the value, if the condition holds.
Any Check(const AnyView* args, int32_t count) {
  if (!Holds(args[2])) TVM_FFI_THROW(ValueError) << kAsserted << args[0].cast<String>() << kAsserted;
  return Any(args[1]);
}

// (message, shape, least, most): the shape of one number, if it is between the two. It takes its place in the message.
Any CheckBounds(const AnyView* args, int32_t count) {
  int64_t number = args[1].cast<Shape>()[0];
  if (number < args[2].cast<int64_t>() || number > args[3].cast<int64_t>()) {
    std::string message = args[0].cast<String>();
    size_t place = message.find(kNumber);
    if (place != std::string::npos) message.replace(place, kNumber.size(), std::to_string(number));
    TVM_FFI_THROW(ValueError) << kAsserted << message << kAsserted;
  }
  return Any(args[1]);
}

int Run(Any (*function)(const AnyView*, int32_t), const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  TVM_FFI_SAFE_CALL_BEGIN();
  *reinterpret_cast<Any*>(result) = function(reinterpret_cast<const AnyView*>(args), count);
  TVM_FFI_SAFE_CALL_END();
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) int __tvm_ffi_tkc_choose(
    void*, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  return Run(Choose, args, count, result);
}

__attribute__((visibility("default"))) int __tvm_ffi_tkc_while(
    void*, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  return Run(While, args, count, result);
}

__attribute__((visibility("default"))) int __tvm_ffi_tkc_repeat(
    void*, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  return Run(Repeat, args, count, result);
}

__attribute__((visibility("default"))) int __tvm_ffi_tkc_check(
    void*, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  return Run(Check, args, count, result);
}

__attribute__((visibility("default"))) int __tvm_ffi_tkc_check_bounds(
    void*, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  return Run(CheckBounds, args, count, result);
}

}  // extern "C"
