// A device for tests that is no real one: torch sees separate memory, of type "standin", which is a second kind of host
// memory. Every operation runs on the CPU; an operation with tensors of both devices is refused, as on a GPU. Operations for
// which the host would wait for a GPU (numbers and rows that it reads, results whose size depends on values) are counted.
#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <atomic>
#include <cstdlib>
#include <set>
#include <string>

namespace {

constexpr auto kDevice = c10::DeviceType::PrivateUse1;
std::atomic<int64_t> waits{0}, bytes_to_host{0}, bytes_to_device{0}, allocated{0}, most_allocated{0}, limit{INT64_MAX};
thread_local bool inside = false;  // a fallback's own copies are no transfers

struct Inside {
    bool before = inside;
    Inside() { inside = true; }
    ~Inside() { inside = before; }
};

// Blocks are preceded by their size; the allocated bytes are compared with a limit, so that memory can run out.
struct Memory final : c10::Allocator {
    static constexpr size_t kHeader = 64;
    static void give_back(void* pointer) {
        if (pointer == nullptr) return;
        char* block = static_cast<char*>(pointer) - kHeader;
        allocated -= *reinterpret_cast<int64_t*>(block);
        std::free(block);
    }
    c10::DataPtr allocate(size_t bytes) override {
        int64_t now = allocated += static_cast<int64_t>(bytes);
        if (now > limit) {
            allocated -= static_cast<int64_t>(bytes);
            TORCH_CHECK_WITH(OutOfMemoryError, false, "standin out of memory: tried to allocate ", bytes, " bytes");
        }
        if (now > most_allocated) most_allocated = now;
        char* block = static_cast<char*>(std::aligned_alloc(64, (bytes + kHeader + 63) / 64 * 64));
        *reinterpret_cast<int64_t*>(block) = static_cast<int64_t>(bytes);
        std::memset(block + kHeader, 0xCD, bytes);
        return {block + kHeader, block + kHeader, &give_back, c10::Device(kDevice, 0)};
    }
    c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
    void copy_data(void* to, const void* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }
};
Memory memory;
REGISTER_ALLOCATOR(kDevice, &memory);

struct Guard final : c10::impl::DeviceGuardImplInterface {
    static constexpr c10::DeviceType static_type = kDevice;
    c10::DeviceType type() const override { return kDevice; }
    c10::Device exchangeDevice(c10::Device) const override { return {kDevice, 0}; }
    c10::Device getDevice() const override { return {kDevice, 0}; }
    void setDevice(c10::Device) const override {}
    void uncheckedSetDevice(c10::Device) const noexcept override {}
    c10::Stream getStream(c10::Device device) const noexcept override {
        return c10::Stream(c10::Stream::DEFAULT, device);
    }
    c10::Stream getDefaultStream(c10::Device device) const override {
        return c10::Stream(c10::Stream::DEFAULT, device);
    }
    c10::Stream exchangeStream(c10::Stream stream) const noexcept override { return stream; }
    c10::DeviceIndex deviceCount() const noexcept override { return 1; }
    void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
    void block(void*, const c10::Stream&) const override {}
    bool queryEvent(void*) const override { return true; }
    void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Hooks final : at::PrivateUse1HooksInterface {
    bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
    bool isAvailable() const override { return true; }
};

at::Tensor host_alias(const at::Tensor& tensor) {
    auto options = tensor.options().device(c10::kCPU);
    if (tensor.numel() == 0) return at::empty_strided(tensor.sizes(), tensor.strides(), options);
    return at::from_blob(
        tensor.data_ptr(), tensor.sizes(), tensor.strides(), [tensor](void*) {}, options);
}

at::Tensor empty(c10::SymIntArrayRef size, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>,
                 std::optional<c10::Device>, std::optional<bool>, std::optional<c10::MemoryFormat> format) {
    constexpr c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
    return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), &memory, keys, c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<c10::ScalarType> dtype,
                         std::optional<c10::Layout>, std::optional<c10::Device>, std::optional<bool>) {
    constexpr c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
    return at::detail::empty_strided_generic(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), &memory, keys,
                                             c10::dtype_or_default(dtype));
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& to, bool) {
    if (!inside && self.device().is_cpu()) bytes_to_device += self.nbytes();
    if (!inside && to.device().is_cpu()) {
        bytes_to_host += self.nbytes();
        ++waits;
    }
    auto source = self.device().is_cpu() ? self : host_alias(self);
    auto target = to.device().is_cpu() ? to : host_alias(to);
    target.copy_(source);
    return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& to) {
    if (self.sizes() != to.sizes()) to.resize_(self.sizes());
    return copy_from(self, to, false);
}

at::Scalar local_scalar(const at::Tensor& self) {
    if (!inside) {
        ++waits;
        bytes_to_host += self.nbytes();
    }
    return host_alias(self).item();
}

// Results whose size depends on values: the host waits for a GPU here.
const std::set<std::string> kSized = {"aten::nonzero",       "aten::_unique2",      "aten::unique_dim",
                                      "aten::masked_select", "aten::bincount",      "aten::repeat_interleave",
                                      "aten::equal",         "aten::unique_consecutive"};

void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    const auto& name = op.schema().operator_name().name;
    bool on_host = false;
    auto look = [&](const at::Tensor& tensor) {
        if (tensor.defined() && tensor.device().is_cpu() && tensor.dim() > 0) on_host = true;
    };
    for (const auto& argument : torch::jit::last(*stack, op.schema().arguments().size())) {
        if (argument.isTensor()) look(argument.toTensor());
        if (argument.isTensorList())
            for (const auto& tensor : argument.toTensorVector()) look(tensor);
        if (argument.isOptionalTensorList())
            for (const std::optional<at::Tensor>& tensor : argument.toOptionalTensorList())
                if (tensor.has_value()) look(*tensor);
    }
    TORCH_CHECK(!on_host, name, ": expected all tensors to be on the same device, but found standin and cpu");
    if (!inside && kSized.count(name)) ++waits;
    Inside here;
    at::native::cpu_fallback(op, stack, /*error_on_views=*/true);
}

std::vector<int64_t> counts() { return {waits, bytes_to_host, bytes_to_device, allocated, most_allocated}; }
void reset_counts() {
    waits = bytes_to_host = bytes_to_device = 0;
    most_allocated = allocated.load();
}
void limit_memory(int64_t bytes) { limit = bytes; }

}  // namespace

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
    m.impl("empty.memory_format", TORCH_FN(empty));
    m.impl("empty_strided", TORCH_FN(empty_strided));
    m.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
    m.impl("view", TORCH_FN(at::native::view));
    m.impl("unfold", TORCH_FN(at::native::unfold));
    m.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
    m.impl("resize_", TORCH_FN(at::native::resize_));
    m.impl("set_.source_Storage_storage_offset", TORCH_FN(at::native::set_storage_cpu_));
    m.impl("set_.source_Storage", TORCH_FN(at::native::set_));
    m.impl("_copy_from", TORCH_FN(copy_from));
    m.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
    m.impl("_local_scalar_dense", TORCH_FN(local_scalar));
}

TORCH_LIBRARY(standin, m) {
    m.def("alias(Tensor x) -> Tensor");
    m.def("counts() -> int[]", counts);
    m.def("reset_counts() -> ()", reset_counts);
    m.def("limit_memory(int bytes) -> ()", limit_memory);
    at::RegisterPrivateUse1HooksInterface(new Hooks());
}
TORCH_LIBRARY_IMPL(standin, PrivateUse1, m) { m.impl("alias", TORCH_FN(host_alias)); }
