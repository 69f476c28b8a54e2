#include "decoder.h"

#include <cstdlib>
#include <cstring>
#include <new>
#include <sys/mman.h>

namespace octavo {

namespace {

constexpr size_t kHugePage = size_t(2) << 20;

size_t element_bytes(WeightType type) { return type == WeightType::f32 ? 4 : 2; }

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

Decoder::Decoder(const Kernels *kernels, const DecoderShape &shape, int num_layers)
    : kernels_(kernels), shape_(shape), layers_(size_t(num_layers)) {}

PackedWeight Decoder::pack(WeightType type, const void *rows, const float *bias, int n, int k,
                           bool gated) const {
    PackedWeight out;
    out.weight.type = type;
    out.weight.n = n;
    out.weight.k = k;
    const size_t padded = size_t(out.weight.num_panels()) * kPanel;
    out.panels = Buffer(padded * size_t(k) * element_bytes(type));
    kernels_->pack(type, rows, n, k, gated, out.panels.data());
    out.weight.panels = out.panels.data();
    if (bias) {
        out.bias = Buffer(padded * sizeof(float));
        kernels_->pack(WeightType::f32, bias, n, 1, gated, out.bias.data());
        out.weight.bias = out.bias.floats();
    }
    return out;
}

void Decoder::set_embedding(WeightType type, const void *rows, size_t bytes) {
    embedding_ = Buffer(bytes);
    embedding_type_ = type;
    std::memcpy(embedding_.data(), rows, bytes);
}

void Decoder::set_rope(std::vector<float> cosines, std::vector<float> sines) {
    cosines_ = std::move(cosines);
    sines_ = std::move(sines);
}

void Decoder::embed(const int64_t *token_ids, int num_tokens, float *out) const {
    const size_t width = size_t(shape_.hidden);
    for (int t = 0; t < num_tokens; t++) {
        float *to = out + size_t(t) * width;
        const size_t from = size_t(token_ids[t]) * width;
        if (!embedding_.data()) {
            kernels_->unpack_row(head_.weight, int(token_ids[t]), to);
        } else if (embedding_type_ == WeightType::f32) {
            std::memcpy(to, embedding_.floats() + from, width * sizeof(float));
        } else {
            const uint16_t *row = static_cast<const uint16_t *>(embedding_.data()) + from;
            for (size_t i = 0; i < width; i++) {
                uint32_t bits = uint32_t(row[i]) << 16;
                std::memcpy(to + i, &bits, 4);
            }
        }
    }
}

void Decoder::run_layer(const Layer &layer, const Batch &batch, float *x) {
    const int m = batch.num_tokens, hidden = shape_.hidden, qkv_width = shape_.qkv_width();
    const AttentionShape &a = shape_.attention;
    const float *q_norm = layer.q_norm.empty() ? nullptr : layer.q_norm.data();
    const float *k_norm = layer.k_norm.empty() ? nullptr : layer.k_norm.data();
    kernels_->rms_norm(x, layer.input_norm.data(), m, hidden, hidden, shape_.eps, normed_.data());
    kernels_->gemm(layer.qkv.weight, normed_.data(), m, Epilogue::store, qkv_.data(), qkv_width);
    kernels_->rope_and_cache(a, batch, cosines_.data(), sines_.data(), q_norm, k_norm, shape_.eps,
                             qkv_.data(), layer.cache);
    kernels_->attention(a, batch, qkv_.data(), layer.cache, attended_.data());
    kernels_->gemm(layer.out.weight, attended_.data(), m, Epilogue::add, x, hidden);
    kernels_->rms_norm(x, layer.post_norm.data(), m, hidden, hidden, shape_.eps, normed_.data());
    kernels_->gemm(layer.gate_up.weight, normed_.data(), m, shape_.gate, gated_.data(),
                   shape_.intermediate);
    kernels_->gemm(layer.down.weight, gated_.data(), m, Epilogue::add, x, hidden);
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
    auto bytes = [](const PackedWeight &w) { return w.panels.bytes() + w.bias.bytes(); };
    size_t total = bytes(head_) + embedding_.bytes();
    for (const Layer &layer : layers_)
        total += bytes(layer.qkv) + bytes(layer.out) + bytes(layer.gate_up) + bytes(layer.down);
    return total + (cosines_.size() + sines_.size()) * sizeof(float);
}

void Decoder::logits(const float *hidden, int num_rows, float *out) {
    reserve(normed_, size_t(num_rows) * size_t(shape_.hidden));
    kernels_->rms_norm(hidden, final_norm_.data(), num_rows, shape_.hidden, shape_.hidden,
                       shape_.eps, normed_.data());
    kernels_->gemm(head_.weight, normed_.data(), num_rows, Epilogue::store, out, head_.weight.n);
}

} // namespace octavo
