// Python bindings: tensors in, tensors out, no Python objects kept.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <omp.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "decoder.h"

namespace nb = nanobind;
using namespace octavo;

namespace {

template <class T, int Dims>
using In = nb::ndarray<const T, nb::ndim<Dims>, nb::c_contig, nb::device::cpu>;
template <class T, int Dims>
using Out = nb::ndarray<T, nb::ndim<Dims>, nb::c_contig, nb::device::cpu>;
using AnyIn = nb::ndarray<nb::c_contig, nb::device::cpu, nb::ro>;
using AnyOut = nb::ndarray<nb::c_contig, nb::device::cpu>;

WeightType type_of(const nb::dlpack::dtype &dtype) {
    if (dtype == nb::dtype<float>()) return WeightType::f32;
    if (dtype.code == uint8_t(nb::dlpack::dtype_code::Bfloat) && dtype.bits == 16)
        return WeightType::bf16;
    throw std::invalid_argument("expected a float32 or bfloat16 tensor");
}

const Kernels *find_kernels(const std::string &name) {
#ifdef OCTAVO_X86
    __builtin_cpu_init();
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    if (name == "avx512" && avx512) return kernels_avx512();
    if (name == "avx2" && avx2) return kernels_avx2();
#endif
    return name == "portable" ? kernels_portable() : nullptr;
}

std::vector<std::string> available() {
    std::vector<std::string> names;
    for (const char *name : {"avx512", "avx2", "portable"})
        if (find_kernels(name)) names.emplace_back(name);
    return names;
}

std::vector<float> copied(const In<float, 1> &x) { return {x.data(), x.data() + x.size()}; }

class Model {
  public:
    Model(const std::string &isa, nb::dict config) {
        const Kernels *kernels = find_kernels(isa);
        if (!kernels) throw std::invalid_argument("no kernels for " + isa + " on this machine");
        auto integer = [&](const char *key) { return nb::cast<int>(config[key]); };
        auto real = [&](const char *key) { return nb::cast<float>(config[key]); };
        DecoderShape s;
        s.hidden = integer("hidden_size");
        s.intermediate = integer("intermediate_size");
        s.eps = real("eps");
        s.gate = integer("gelu") ? Epilogue::gelu_gate : Epilogue::silu_gate;
        s.attention = {integer("num_heads"),  integer("num_kv_heads"), integer("head_dim"),
                       integer("block_size"), integer("window"),       real("scale"),
                       real("soft_cap")};
        for (int size : {s.attention.block_size, s.attention.head_dim})
            if (size % kernels->width)
                throw std::invalid_argument("block_size and head_dim must be multiples of " +
                                            std::to_string(kernels->width));
        if (s.attention.head_dim > 256) throw std::invalid_argument("head_dim is above 256");
        decoder_ = std::make_unique<Decoder>(kernels, s, integer("num_layers"));
    }

    void set_linear(int layer, const std::string &name, AnyIn weight,
                    std::optional<In<float, 1>> bias) {
        PackedWeight packed = decoder_->pack(
            type_of(weight.dtype()), weight.data(), bias ? bias->data() : nullptr,
            int(weight.shape(0)), int(weight.shape(1)), name == "gate_up");
        if (name == "head") return decoder_->set_head(std::move(packed));
        Layer &l = decoder_->layer(layer);
        (name == "qkv" ? l.qkv : name == "out" ? l.out : name == "gate_up" ? l.gate_up : l.down) =
            std::move(packed);
    }

    void set_norm(int layer, const std::string &name, In<float, 1> weight) {
        if (name == "final") return decoder_->set_final_norm(copied(weight));
        Layer &l = decoder_->layer(layer);
        (name == "input"    ? l.input_norm
         : name == "post"   ? l.post_norm
         : name == "q_norm" ? l.q_norm
                            : l.k_norm) = copied(weight);
    }

    void set_embedding(AnyIn weight) {
        decoder_->set_embedding(type_of(weight.dtype()), weight.data(), weight.nbytes());
    }

    void set_rope(In<float, 2> cosines, In<float, 2> sines) {
        decoder_->set_rope({cosines.data(), cosines.data() + cosines.size()},
                           {sines.data(), sines.data() + sines.size()});
    }

    void set_cache(int layer, AnyOut key, AnyOut value) {
        CacheType type = type_of(key.dtype()) == WeightType::f32 ? CacheType::f32 : CacheType::bf16;
        decoder_->layer(layer).cache = {type, key.data(), value.data()};
    }

    void forward(In<int64_t, 1> token_ids, In<int64_t, 1> positions, In<int64_t, 1> slots,
                 In<int64_t, 1> query_starts, In<int64_t, 1> context_lens,
                 In<int32_t, 2> block_tables, Out<float, 2> hidden) {
        Batch batch;
        batch.num_tokens = int(token_ids.size());
        batch.num_rows = int(context_lens.size());
        batch.max_blocks = int(block_tables.shape(1));
        batch.positions = positions.data();
        batch.slots = slots.data();
        batch.query_starts = query_starts.data();
        batch.context_lens = context_lens.data();
        batch.block_tables = block_tables.data();
        nb::gil_scoped_release unlocked;
        decoder_->forward(token_ids.data(), batch, hidden.data());
    }

    void logits(In<float, 2> hidden, Out<float, 2> out) {
        nb::gil_scoped_release unlocked;
        decoder_->logits(hidden.data(), int(hidden.shape(0)), out.data());
    }

    size_t weight_bytes() const { return decoder_->weight_bytes(); }

  private:
    std::unique_ptr<Decoder> decoder_;
};

} // namespace

NB_MODULE(_native, m) {
    m.def("available", &available);
    m.def("width", [](const std::string &isa) {
        const Kernels *kernels = find_kernels(isa);
        if (!kernels) throw std::invalid_argument("no kernels for " + isa + " on this machine");
        return kernels->width;
    });
    m.def("set_num_threads", &omp_set_num_threads);
    nb::class_<Model>(m, "Model")
        .def(nb::init<const std::string &, nb::dict>())
        .def("set_linear", &Model::set_linear, nb::arg("layer"), nb::arg("name"), nb::arg("weight"),
             nb::arg("bias").none())
        .def("set_norm", &Model::set_norm)
        .def("set_embedding", &Model::set_embedding)
        .def("set_rope", &Model::set_rope)
        .def("set_cache", &Model::set_cache)
        .def("forward", &Model::forward)
        .def("logits", &Model::logits)
        .def_prop_ro("weight_bytes", &Model::weight_bytes);
}
