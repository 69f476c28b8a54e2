#include "decoder.h"

#include <cstdlib>
#include <cstring>
#include <new>
#include <sys/mman.h>

namespace octavo {

namespace {

constexpr size_t kHugePage = size_t(2) << 20;

void reserve(std::vector<float> &scratch, size_t count) {
    if (scratch.size() < count) scratch.resize(count);
}

} // namespace

Buffer::Buffer(size_t bytes) : bytes_(bytes) {
    size_t rounded = (bytes + kHugePage - 1) / kHugePage * kHugePage;
    void *p = std::aligned_alloc(bytes < kHugePage ? 64 : kHugePage,
                                 bytes < kHugePage ? (bytes + 63) / 64 * 64 : rounded);
    if (!p) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
    if (bytes >= kHugePage) madvise(p, rounded, MADV_HUGEPAGE);
#endif
    data_.reset(p);
}

void Buffer::Free::operator()(void *p) const { std::free(p); }

Decoder::Decoder(const Kernels *kernels, const DecoderShape &shape, int num_layers, int num_threads)
    : kernels_(kernels), pool_(num_threads), shape_(shape), layers_(size_t(num_layers)) {}

namespace {

PackedWeight make_packed(Pool &pool, const Kernels &kernels, WeightType type, const float *bias,
                         int n, int k, bool gated) {
    PackedWeight out;
    out.weight.type = type;
    out.weight.n = n;
    out.weight.k = k;
    const size_t count = size_t(out.weight.num_panels());
    out.panels = Buffer(count * out.weight.panel_bytes());
    out.weight.panels = out.panels.data();
    if (bias) {
        out.bias = Buffer(count * kPanel * sizeof(float));
        kernels.pack(pool, WeightType::f32, bias, n, 1, gated, out.bias.data());
        out.weight.bias = out.bias.floats();
    }
    return out;
}

} // namespace

PackedWeight pack(Pool &pool, const Kernels &kernels, WeightType type, const void *rows,
                  const float *bias, int n, int k, bool gated) {
    PackedWeight out = make_packed(pool, kernels, type, bias, n, k, gated);
    kernels.pack(pool, type, rows, n, k, gated, out.panels.data());
    return out;
}

PackedWeight pack_codes(Pool &pool, const Kernels &kernels, WeightType type, const Codes &codes,
                        const float *bias, int n, int k, int group, bool gated) {
    PackedWeight out = make_packed(pool, kernels, type, bias, n, k, gated);
    const size_t columns = size_t(out.weight.num_panels()) * kPanel;
    out.weight.group = group;
    const size_t scale_bytes = columns * size_t(k / group) * sizeof(uint16_t);
    auto half = [](Buffer &buffer) { return static_cast<uint16_t *>(buffer.data()); };
    out.scales = Buffer(scale_bytes);
    if (codes.minimums) out.minimums = Buffer(scale_bytes);
    kernels.pack_codes(pool, codes, out.weight, gated, static_cast<uint8_t *>(out.panels.data()),
                       half(out.scales), half(out.minimums));
    out.weight.scales = half(out.scales);
    out.weight.minimums = half(out.minimums);
    return out;
}

Activations RoundedRows::fit(const Weight &weight, int m) {
    const size_t values = size_t(m) * size_t(weight.k);
    const size_t groups = size_t(m) * size_t(weight.k / kActivationGroup);
    if (values_.size() < values) values_.resize(values);
    if (scales_.size() < groups) {
        scales_.resize(groups);
        offsets_.resize(groups);
    }
    return {values_.data(), scales_.data(), offsets_.data()};
}

void product(Pool &pool, const Kernels &kernels, const Weight &weight, const float *x, int m,
             Epilogue epilogue, float *y, int ldy, RoundedRows &rounded) {
    if (!is_integer(weight.type)) return kernels.gemm(pool, weight, x, m, epilogue, y, ldy);
    const Activations rows = rounded.fit(weight, m);
    kernels.quantize(pool, weight, x, m, rows);
    kernels.gemm_integer(pool, weight, rows, m, epilogue, y, ldy);
}

void Decoder::set_rope(std::vector<float> cosines, std::vector<float> sines) {
    cosines_ = std::move(cosines);
    sines_ = std::move(sines);
}

void Decoder::embed(const int64_t *token_ids, int num_tokens, float *out) const {
    const Weight &rows = embedding_.panels.data() ? embedding_.weight : head_.weight;
    for (int t = 0; t < num_tokens; t++)
        kernels_->unpack_row(rows, int(token_ids[t]), out + size_t(t) * size_t(shape_.hidden));
}

void Decoder::run_layer(const Layer &layer, const Batch &batch, float *x) {
    const int m = batch.num_tokens, hidden = shape_.hidden, qkv_width = shape_.qkv_width();
    const AttentionShape &a = shape_.attention;
    const float *q_norm = layer.q_norm.empty() ? nullptr : layer.q_norm.data();
    const float *k_norm = layer.k_norm.empty() ? nullptr : layer.k_norm.data();
    auto times = [&](const Weight &weight, const float *from, Epilogue epilogue, float *y, int ldy) {
        product(pool_, *kernels_, weight, from, m, epilogue, y, ldy, rounded_);
    };
    kernels_->rms_norm(pool_, x, layer.input_norm.data(), m, hidden, hidden, shape_.eps, normed_.data());
    float *qkv = qkv_.data();
    for (const PackedWeight &part : layer.qkv) {
        times(part.weight, normed_.data(), Epilogue::store, qkv, qkv_width);
        qkv += part.weight.n;
    }
    kernels_->rope_and_cache(pool_, a, batch, cosines_.data(), sines_.data(), q_norm, k_norm, shape_.eps,
                             qkv_.data(), layer.cache);
    kernels_->attention(pool_, a, batch, qkv_.data(), layer.cache, attended_.data());
    times(layer.out.weight, attended_.data(), Epilogue::add, x, hidden);
    kernels_->rms_norm(pool_, x, layer.post_norm.data(), m, hidden, hidden, shape_.eps, normed_.data());
    times(layer.gate_up.weight, normed_.data(), shape_.gate, gated_.data(), shape_.intermediate);
    times(layer.down.weight, gated_.data(), Epilogue::add, x, hidden);
}

void Decoder::forward(const int64_t *token_ids, const Batch &batch, float *hidden) {
    const size_t m = size_t(batch.num_tokens);
    reserve(normed_, m * size_t(shape_.hidden));
    reserve(qkv_, m * size_t(shape_.qkv_width()));
    reserve(attended_, m * size_t(shape_.attention_width()));
    reserve(gated_, m * size_t(shape_.intermediate));
    embed(token_ids, batch.num_tokens, hidden);
    for (const Layer &layer : layers_) run_layer(layer, batch, hidden);
}

size_t Decoder::weight_bytes() const {
    size_t total = head_.bytes() + embedding_.bytes();
    for (const Layer &layer : layers_) {
        total += layer.out.bytes() + layer.gate_up.bytes() + layer.down.bytes();
        for (const PackedWeight &part : layer.qkv) total += part.bytes();
    }
    return total + (cosines_.size() + sines_.size()) * sizeof(float);
}

void Decoder::logits(const float *hidden, int num_rows, float *out) {
    reserve(normed_, size_t(num_rows) * size_t(shape_.hidden));
    kernels_->rms_norm(pool_, hidden, final_norm_.data(), num_rows, shape_.hidden, shape_.hidden,
                       shape_.eps, normed_.data());
    product(pool_, *kernels_, head_.weight, normed_.data(), num_rows, Epilogue::store, out, head_.weight.n,
            rounded_);
}

} // namespace octavo
