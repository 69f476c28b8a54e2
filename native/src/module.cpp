// Python bindings: tensors in, tensors out, no Python objects kept.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "decoder.h"

#ifdef OCTAVO_EMULATED
#define OCTAVO_HAS(feature) true
#else
#define OCTAVO_HAS(feature) __builtin_cpu_supports(feature)
#endif

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
    bool avx2 = OCTAVO_HAS("avx2") && OCTAVO_HAS("fma") &&
                OCTAVO_HAS("f16c");
    bool avx512 = OCTAVO_HAS("avx512f") && OCTAVO_HAS("avx512bw") &&
                  OCTAVO_HAS("avx512vl") && OCTAVO_HAS("avx512dq");
    if (name == "avx512_vnni" && avx512 && OCTAVO_HAS("avx512vnni"))
        return kernels_avx512_vnni();
    if (name == "avx512" && avx512) return kernels_avx512();
    if (name == "avx2" && avx2) return kernels_avx2();
#endif
    return name == "portable" ? kernels_portable() : nullptr;
}

std::vector<std::string> available() {
    std::vector<std::string> names;
    for (const char *name : {"avx512_vnni", "avx512", "avx2", "portable"})
        if (find_kernels(name)) names.emplace_back(name);
    return names;
}

std::vector<float> copied(const In<float, 1> &x) { return {x.data(), x.data() + x.size()}; }

const Kernels &require_kernels(const std::string &isa) {
    const Kernels *kernels = find_kernels(isa);
    if (!kernels) throw std::invalid_argument("no kernels for " + isa + " on this machine");
    return *kernels;
}

const float *pointer(const std::optional<In<float, 1>> &bias) { return bias ? bias->data() : nullptr; }

PackedWeight pack_rows(Pool &pool, const Kernels &kernels, const AnyIn &rows,
                       const std::optional<In<float, 1>> &bias, bool gated) {
    return pack(pool, kernels, type_of(rows.dtype()), rows.data(), pointer(bias), int(rows.shape(0)),
                int(rows.shape(1)), gated);
}

// `parts`: bits, group, codes uint8 [n, k], scales (half precision as int16 [n, k / group]), minimums
// (the same, or None).
PackedWeight pack_integers(Pool &pool, const Kernels &kernels, nb::tuple parts,
                           const std::optional<In<float, 1>> &bias, bool gated) {
    using Halves = In<int16_t, 2>;
    const int bits = nb::cast<int>(parts[0]), group = nb::cast<int>(parts[1]);
    auto codes = nb::cast<In<uint8_t, 2>>(parts[2]);
    const int n = int(codes.shape(0)), k = int(codes.shape(1));
    if (bits != 8 && bits != 4) throw std::invalid_argument("integer weights have 8 or 4 bits");
    if (group <= 0 || group % kActivationGroup || k % group)
        throw std::invalid_argument("k must be a multiple of the group, and the group of 32");
    auto scales = nb::cast<Halves>(parts[3]);
    if (scales.size() != size_t(n) * size_t(k / group))
        throw std::invalid_argument("scales do not fit the codes");
    Codes from{codes.data(), reinterpret_cast<const uint16_t *>(scales.data()), nullptr};
    std::optional<Halves> minimums;
    if (!parts[4].is_none()) {
        if (bits != 4) throw std::invalid_argument("8-bit weights have no minimums");
        minimums = nb::cast<Halves>(parts[4]);
        if (minimums->size() != scales.size())
            throw std::invalid_argument("minimums do not fit the scales");
        from.minimums = reinterpret_cast<const uint16_t *>(minimums->data());
    }
    return pack_codes(pool, kernels, bits == 8 ? WeightType::int8 : WeightType::int4, from, pointer(bias),
                      n, k, group, gated);
}

PackedWeight pack_any(Pool &pool, const Kernels &kernels, nb::object weight,
                      const std::optional<In<float, 1>> &bias, bool gated) {
    if (nb::isinstance<nb::tuple>(weight))
        return pack_integers(pool, kernels, nb::cast<nb::tuple>(weight), bias, gated);
    return pack_rows(pool, kernels, nb::cast<AnyIn>(weight), bias, gated);
}

// One product by itself: what the tests of kernels look at.
class Linear {
  public:
    Linear(const std::string &isa, nb::object weight, std::optional<In<float, 1>> bias,
           const std::string &gate, int num_threads)
        : kernels_(require_kernels(isa)), pool_(num_threads),
          epilogue_(gate == "silu"   ? Epilogue::silu_gate
                    : gate == "gelu" ? Epilogue::gelu_gate
                                     : Epilogue::store),
          packed_(pack_any(pool_, kernels_, weight, bias, epilogue_ != Epilogue::store)) {}

    void run(In<float, 2> x, Out<float, 2> y) {
        if (int(x.shape(1)) != packed_.weight.k || x.shape(0) != y.shape(0))
            throw std::invalid_argument("x does not fit the weight");
        nb::gil_scoped_release unlocked;
        product(pool_, kernels_, packed_.weight, x.data(), int(x.shape(0)), epilogue_, y.data(),
                int(y.shape(1)), rounded_);
    }

    void unpack_row(int row, Out<float, 1> out) { kernels_.unpack_row(packed_.weight, row, out.data()); }
    size_t bytes() const { return packed_.bytes(); }

  private:
    const Kernels &kernels_;
    Pool pool_;
    Epilogue epilogue_;
    PackedWeight packed_;
    RoundedRows rounded_;
};

class Model {
  public:
    Model(const std::string &isa, nb::dict config) {
        const Kernels *kernels = &require_kernels(isa);
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
        decoder_ = std::make_unique<Decoder>(kernels, s, integer("num_layers"), integer("num_threads"));
    }

    // Parts of "qkv" may come one by one, from left to right.
    void set_linear(int layer, const std::string &name, nb::object weight,
                    std::optional<In<float, 1>> bias) {
        PackedWeight packed = pack_any(decoder_->pool(), decoder_->kernels(), weight, bias, name == "gate_up");
        if (name == "head") return decoder_->set_head(std::move(packed));
        Layer &l = decoder_->layer(layer);
        if (name == "qkv") return l.qkv.push_back(std::move(packed));
        (name == "out" ? l.out : name == "gate_up" ? l.gate_up : l.down) = std::move(packed);
    }

    void set_norm(int layer, const std::string &name, In<float, 1> weight) {
        if (name == "final") return decoder_->set_final_norm(copied(weight));
        Layer &l = decoder_->layer(layer);
        (name == "input"    ? l.input_norm
         : name == "post"   ? l.post_norm
         : name == "q_norm" ? l.q_norm
                            : l.k_norm) = copied(weight);
    }

    void set_embedding(nb::object weight) {
        decoder_->set_embedding(pack_any(decoder_->pool(), decoder_->kernels(), weight, std::nullopt, false));
    }

    void set_rope(In<float, 2> cosines, In<float, 2> sines) {
        decoder_->set_rope({cosines.data(), cosines.data() + cosines.size()},
                           {sines.data(), sines.data() + sines.size()});
    }

    void set_cache(int layer, AnyOut key, AnyOut value) {
        CacheType type = key.dtype() == nb::dtype<int8_t>()              ? CacheType::int8
                         : type_of(key.dtype()) == WeightType::f32 ? CacheType::f32
                                                                   : CacheType::bf16;
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
        return require_kernels(isa).width;
    });
    nb::class_<Linear>(m, "Linear")
        .def(nb::init<const std::string &, nb::object, std::optional<In<float, 1>>,
                      const std::string &, int>(),
             nb::arg("isa"), nb::arg("weight"), nb::arg("bias").none() = nb::none(),
             nb::arg("gate") = "", nb::arg("num_threads") = 2)
        .def("run", &Linear::run)
        .def("unpack_row", &Linear::unpack_row)
        .def_prop_ro("bytes", &Linear::bytes);
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
