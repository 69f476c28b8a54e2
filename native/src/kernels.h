// The interface between the decoder and the kernels of one instruction set.
//
// Every kernel keeps one promise: the bits of an output row depend on that row's inputs alone,
// never on how many other rows are in the call or on which thread ran it. Products accumulate over
// K one element after the other, attention over fixed segments of the context in order.
#pragma once

#include <cstddef>
#include <cstdint>

#include "pool.h"

namespace octavo {

// Columns of a weight matrix that lie together in memory; see pack() of each kernel.
constexpr int kPanel = 32;
// Tokens after which a partial softmax is merged into the running one.
constexpr int kSegment = 256;

// Values of k whose activations share a scale in products with grouped integer weights.
constexpr int kActivationGroup = 32;

enum class WeightType : int { f32 = 0, bf16 = 1, int8 = 2, int4 = 3 };
enum class CacheType : int { f32 = 0, bf16 = 1, int8 = 2 };

inline bool is_integer(WeightType type) { return type == WeightType::int8 || type == WeightType::int4; }

// What is done to a product before it is stored.
enum class Epilogue : int {
    store = 0,     // y = x W^T (+ bias)
    add = 1,       // y += x W^T (+ bias): the residual stream
    silu_gate = 2, // panels hold 16 gate and 16 up columns: y = silu(gate) * up
    gelu_gate = 3, // the same with the tanh approximation of gelu
};

// A weight matrix [n, k] as panels of 32 columns of its transpose, padded with zeros.
//
// f32, bf16: [ceil(n / 32)][k][32]; see gemm.h for the order of the 32.
// int8: [ceil(n / 32)][k / 4][32][4], unsigned codes; a value is scale * (code - 128).
// int4: [ceil(n / 32)][k / 32][4][32][4]: the low half of byte j of part s is the code of
//   k = 4 s + j of the group of 32, the high half that of k = 4 (s + 4) + j; a value is
//   scale * (code - 8), or scale * code + minimum.
// k is a multiple of the group, and the group of 32, in both.
struct Weight {
    WeightType type = WeightType::f32;
    int n = 0;
    int k = 0;
    const void *panels = nullptr;
    const float *bias = nullptr; // in panel order, padded; or null
    int group = 0;                      // values of k that share a scale
    const uint16_t *scales = nullptr;   // half precision [ceil(n / 32)][k / group][32]
    const uint16_t *minimums = nullptr; // the same; or null

    int num_panels() const { return (n + kPanel - 1) / kPanel; }
    size_t panel_bytes() const {
        size_t values = size_t(k) * kPanel;
        return type == WeightType::f32    ? 4 * values
               : type == WeightType::bf16 ? 2 * values
               : type == WeightType::int8 ? values
                                          : values / 2;
    }
};

// What an integer matrix is packed from: one code a value, scales as in Weight but row by row.
struct Codes {
    const uint8_t *codes = nullptr;     // [n, k]
    const uint16_t *scales = nullptr;   // half precision [n, k / group]
    const uint16_t *minimums = nullptr; // the same; or null
};

// Rows x [m, k] as 8-bit integers, each group of 32 with a scale of its own.
struct Activations {
    int8_t *values = nullptr; // [m, k]
    float *scales = nullptr;  // [m, k / 32]
    float *offsets = nullptr; // [m, k / 32]: scale times sum of the values
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
// [block][kv head][block_size][head_dim]. int8: each [block][kv head] is followed by the scales of
// its tokens, bf16 [block_size].
struct Cache {
    CacheType type = CacheType::f32;
    void *key = nullptr;
    void *value = nullptr;
};

struct Kernels {
    const char *name;
    int width; // floats in a vector; the cache's block size must be a multiple
    // rows [n, k] (row-major, source type = weight type) into panels.
    void (*pack)(Pool &pool, WeightType type, const void *rows, int n, int k, bool gated, void *panels);
    void (*pack_codes)(Pool &pool, const Codes &codes, const Weight &weight, bool gated,
                       uint8_t *panels, uint16_t *scales, uint16_t *minimums);
    // one row of a packed matrix, as floats (embedding lookup in a tied output projection)
    void (*unpack_row)(const Weight &weight, int row, float *out);
    // y [m, n] from x [m, k]; leading dimensions in elements
    void (*gemm)(Pool &pool, const Weight &weight, const float *x, int m, Epilogue epilogue,
                 float *y, int ldy);
    // the same for integer weights, from rows that `quantize` has made for this weight
    void (*quantize)(Pool &pool, const Weight &weight, const float *x, int m, const Activations &out);
    void (*gemm_integer)(Pool &pool, const Weight &weight, const Activations &x, int m,
                         Epilogue epilogue, float *y, int ldy);
    void (*rms_norm)(Pool &pool, const float *x, const float *weight, int rows, int width, int ldx,
                     float eps, float *y);
    // Rotates q and k of a packed qkv row in place (halves, as in GPT-NeoX) and writes k, v to
    // their slots. q_norm and k_norm may be null. cosines, sines: [max_position, head_dim / 2].
    void (*rope_and_cache)(Pool &pool, const AttentionShape &shape, const Batch &batch, const float *cosines,
                           const float *sines, const float *q_norm, const float *k_norm, float eps,
                           float *qkv, const Cache &cache);
    // out [num_tokens, num_heads * head_dim] from the q part of qkv rows
    void (*attention)(Pool &pool, const AttentionShape &shape, const Batch &batch,
                      const float *qkv, const Cache &cache, float *out);
};

const Kernels *kernels_portable();
const Kernels *kernels_avx2();   // null where it was not compiled in
const Kernels *kernels_avx512();
const Kernels *kernels_avx512_vnni();

} // namespace octavo
