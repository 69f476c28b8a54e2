// The interface between the decoder and the kernels of one instruction set.
//
// Every kernel keeps one promise: the bits of an output row depend on that row's inputs alone,
// never on how many other rows are in the call or on which thread ran it. Products accumulate over
// K one element after the other, attention over fixed segments of the context in order.
#pragma once

#include <cstddef>
#include <cstdint>

namespace octavo {

// Columns of a weight matrix that lie together in memory; see pack() of each kernel.
constexpr int kPanel = 32;
// Tokens after which a partial softmax is merged into the running one.
constexpr int kSegment = 256;

enum class WeightType : int { f32 = 0, bf16 = 1 };
enum class CacheType : int { f32 = 0, bf16 = 1 };

// What is done to a product before it is stored.
enum class Epilogue : int {
    store = 0,     // y = x W^T (+ bias)
    add = 1,       // y += x W^T (+ bias): the residual stream
    silu_gate = 2, // panels hold 16 gate and 16 up columns: y = silu(gate) * up
    gelu_gate = 3, // the same with the tanh approximation of gelu
};

// A weight matrix [n, k] as panels [ceil(n / 32)][k][32], padded with zeros.
struct Weight {
    WeightType type = WeightType::f32;
    int n = 0;
    int k = 0;
    const void *panels = nullptr;
    const float *bias = nullptr; // in panel order, padded; or null

    int num_panels() const { return (n + kPanel - 1) / kPanel; }
};

// Everything attention needs to know of a step. Host arrays, owned by the caller.
struct Batch {
    int num_tokens = 0;
    int num_rows = 0;
    int max_blocks = 0;
    const int64_t *positions = nullptr;    // [num_tokens]
    const int64_t *slots = nullptr;        // [num_tokens]
    const int64_t *query_starts = nullptr; // [num_rows + 1]
    const int64_t *context_lens = nullptr; // [num_rows]
    const int32_t *block_tables = nullptr; // [num_rows, max_blocks]
};

struct AttentionShape {
    int num_heads = 0;
    int num_kv_heads = 0;
    int head_dim = 0;
    int block_size = 0;
    int window = 0;       // 0: none
    float scale = 1.0f;
    float soft_cap = 0.0f; // 0: none

    int group() const { return num_heads / num_kv_heads; }
};

// K and V of one layer: K as [block][kv head][block_size / W][head_dim][W tokens], W being the
// kernels' vector width, V as
// [block][kv head][block_size][head_dim].
struct Cache {
    CacheType type = CacheType::f32;
    void *key = nullptr;
    void *value = nullptr;
};

struct Kernels {
    const char *name;
    int width; // floats in a vector; the cache's block size must be a multiple
    // rows [n, k] (row-major, source type = weight type) into panels.
    void (*pack)(WeightType type, const void *rows, int n, int k, bool gated, void *panels);
    // one row of a packed matrix, as floats (embedding lookup in a tied output projection)
    void (*unpack_row)(const Weight &weight, int row, float *out);
    // y [m, n] from x [m, k]; leading dimensions in elements
    void (*gemm)(const Weight &weight, const float *x, int m, Epilogue epilogue, float *y, int ldy);
    void (*rms_norm)(const float *x, const float *weight, int rows, int width, int ldx, float eps,
                     float *y);
    // Rotates q and k of a packed qkv row in place (halves, as in GPT-NeoX) and writes k, v to
    // their slots. q_norm and k_norm may be null. cosines, sines: [max_position, head_dim / 2].
    void (*rope_and_cache)(const AttentionShape &shape, const Batch &batch, const float *cosines,
                           const float *sines, const float *q_norm, const float *k_norm, float eps,
                           float *qkv, const Cache &cache);
    // out [num_tokens, num_heads * head_dim] from the q part of qkv rows
    void (*attention)(const AttentionShape &shape, const Batch &batch, const float *qkv,
                      const Cache &cache, float *out);
};

const Kernels *kernels_portable();
const Kernels *kernels_avx2();   // null where it was not compiled in
const Kernels *kernels_avx512();

} // namespace octavo
