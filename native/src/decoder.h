// A whole decoder-only transformer on one set of kernels: token ids to hidden states and logits.
#pragma once

#include <memory>
#include <vector>

#include "kernels.h"

namespace octavo {

// Aligned memory that the kernel may back with huge pages.
class Buffer {
  public:
    Buffer() = default;
    explicit Buffer(size_t bytes);
    void *data() const { return data_.get(); }
    float *floats() const { return static_cast<float *>(data_.get()); }
    size_t bytes() const { return bytes_; }

  private:
    struct Free {
        void operator()(void *p) const;
    };
    std::unique_ptr<void, Free> data_;
    size_t bytes_ = 0;
};

struct PackedWeight {
    Weight weight;
    Buffer panels, bias, scales, minimums;

    size_t bytes() const {
        return panels.bytes() + bias.bytes() + scales.bytes() + minimums.bytes();
    }
};

struct Layer {
    std::vector<PackedWeight> qkv; // side by side; more than one where their types differ
    PackedWeight out, gate_up, down;
    std::vector<float> input_norm, post_norm, q_norm, k_norm;
    Cache cache;
};

struct DecoderShape {
    int hidden = 0;
    int intermediate = 0;
    float eps = 1e-5f;
    Epilogue gate = Epilogue::silu_gate;
    AttentionShape attention;

    int qkv_width() const {
        return (attention.num_heads + 2 * attention.num_kv_heads) * attention.head_dim;
    }
    int attention_width() const { return attention.num_heads * attention.head_dim; }
};

// Where rows are rounded to 8 bits for products with integer weights; grows to the largest.
class RoundedRows {
  public:
    Activations fit(const Weight &weight, int m);

  private:
    std::vector<int8_t> values_;
    std::vector<float> scales_, offsets_;
};

// y = x W^T with whatever the weight needs.
void product(Pool &pool, const Kernels &kernels, const Weight &weight, const float *x, int m,
             Epilogue epilogue, float *y, int ldy, RoundedRows &rounded);

// Packs rows [n, k]; a gated matrix holds gate rows, then up rows.
PackedWeight pack(Pool &pool, const Kernels &kernels, WeightType type, const void *rows,
                  const float *bias, int n, int k, bool gated);

// The same for codes of 8 or 4 bits. `group`: values that share a scale.
PackedWeight pack_codes(Pool &pool, const Kernels &kernels, WeightType type, const Codes &codes,
                        const float *bias, int n, int k, int group, bool gated);

class Decoder {
  public:
    Decoder(const Kernels *kernels, const DecoderShape &shape, int num_layers, int num_threads);

    const Kernels &kernels() const { return *kernels_; }
    Pool &pool() { return pool_; }
    Layer &layer(int i) { return layers_.at(size_t(i)); }
    void set_head(PackedWeight head) { head_ = std::move(head); }
    // Without one the output projection serves (tied weights).
    void set_embedding(PackedWeight embedding) { embedding_ = std::move(embedding); }
    void set_final_norm(std::vector<float> weight) { final_norm_ = std::move(weight); }
    void set_rope(std::vector<float> cosines, std::vector<float> sines);

    // hidden [num_tokens, hidden], before the final norm
    void forward(const int64_t *token_ids, const Batch &batch, float *hidden);
    // logits [num_rows, vocabulary] of hidden [num_rows, hidden]
    void logits(const float *hidden, int num_rows, float *out);

    size_t weight_bytes() const;

  private:
    void embed(const int64_t *token_ids, int num_tokens, float *out) const;
    void run_layer(const Layer &layer, const Batch &batch, float *x);

    const Kernels *kernels_;
    Pool pool_;
    DecoderShape shape_;
    std::vector<Layer> layers_;
    PackedWeight head_, embedding_;
    std::vector<float> final_norm_, cosines_, sines_;
    std::vector<float> normed_, qkv_, attended_, gated_; // scratch, grown to the largest step
    RoundedRows rounded_;
};

} // namespace octavo
