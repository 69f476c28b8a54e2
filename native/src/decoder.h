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
    Buffer panels;
    Buffer bias;
};

struct Layer {
    PackedWeight qkv, out, gate_up, down;
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

class Decoder {
  public:
    Decoder(const Kernels *kernels, const DecoderShape &shape, int num_layers);

    // Packs rows [n, k]; a gated matrix holds gate rows, then up rows.
    PackedWeight pack(WeightType type, const void *rows, const float *bias, int n, int k,
                      bool gated) const;

    Layer &layer(int i) { return layers_.at(size_t(i)); }
    void set_head(PackedWeight head) { head_ = std::move(head); }
    // Rows of the embedding, unpacked; without it the output projection serves (tied weights).
    void set_embedding(WeightType type, const void *rows, size_t bytes);
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
    DecoderShape shape_;
    std::vector<Layer> layers_;
    PackedWeight head_;
    Buffer embedding_;
    WeightType embedding_type_ = WeightType::f32;
    std::vector<float> final_norm_, cosines_, sines_;
    std::vector<float> normed_, qkv_, attended_, gated_; // scratch, grown to the largest step
};

} // namespace octavo
