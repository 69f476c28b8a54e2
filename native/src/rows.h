// Kernels that work on one token at a time: norm, rotation, cache writes.

static inline void norm_row(const float *x, const float *weight, int width, float eps, float *y) {
    F squares = zero();
    int i = 0;
    for (; i + W <= width; i += W) squares = fma(load(x + i), load(x + i), squares);
    float total = sum(squares);
    for (; i < width; i++) total += x[i] * x[i];
    float scale = 1.0f / std::sqrt(total / width + eps);
    F s = splat(scale);
    for (i = 0; i + W <= width; i += W) store(y + i, mul(mul(load(x + i), s), load(weight + i)));
    for (; i < width; i++) y[i] = x[i] * scale * weight[i];
}

static void rms_norm(Pool &pool, const float *x, const float *weight, int rows, int width, int ldx,
                     float eps, float *y) {
    parallel(pool, rows, kRowsAtOnce, [&](int row) {
        norm_row(x + size_t(row) * ldx, weight, width, eps, y + size_t(row) * width);
    });
}

static inline void rotate(float *head, const float *cosines, const float *sines, int half) {
    for (int i = 0; i < half; i++) {
        float a = head[i], b = head[i + half];
        head[i] = a * cosines[i] - b * sines[i];
        head[i + half] = b * cosines[i] + a * sines[i];
    }
}

// Elements of T that one kv head of one block takes: its values, then the scales of 8-bit ones.
template <class T> static inline size_t head_stride(const AttentionShape &s) {
    size_t scales = sizeof(T) == 1 ? sizeof(uint16_t) * size_t(s.block_size) : 0;
    return size_t(s.block_size) * s.head_dim + scales;
}
template <class T> static inline T *head_of(const AttentionShape &s, void *base, int64_t block, int h) {
    return static_cast<T *>(base) + (size_t(block) * s.num_kv_heads + h) * head_stride<T>(s);
}
static inline uint16_t *scales_of(const AttentionShape &s, int8_t *head) {
    return reinterpret_cast<uint16_t *>(head + size_t(s.block_size) * s.head_dim);
}

static inline void convert(const float *x, int d, float *to, size_t step) {
    for (int i = 0; i < d; i++) to[size_t(i) * step] = x[i];
}
static inline void convert(const float *x, int d, uint16_t *to, size_t step) {
    for (int i = 0; i < d; i++) to[size_t(i) * step] = to_bf16(x[i]);
}
// Rounds to the scale as it is stored, which is never below peak / 127. What is not finite makes the
// scale NaN.
static inline uint16_t convert(const float *x, int d, int8_t *to, size_t step) {
    float peak = 0.0f, spoilt = 0.0f;
    for (int i = 0; i < d; i++) {
        peak = std::fabs(x[i]) > peak ? std::fabs(x[i]) : peak;
        spoilt += x[i] * 0.0f;
    }
    float wanted = peak / 127.0f + spoilt;
    uint32_t bits;
    std::memcpy(&bits, &wanted, 4);
    uint16_t stored = spoilt == 0.0f ? uint16_t((bits + 0xffff) >> 16) : to_bf16(wanted);
    float inverse = spoilt == 0.0f && peak > 1e-36f ? 1.0f / to_float(stored) : 0.0f;
    for (int i = 0; i < d; i++)
        to[size_t(i) * step] = inverse == 0.0f ? int8_t(0) : int8_t(std::lrintf(x[i] * inverse));
    return stored;
}

template <class T>
static void write_token(const AttentionShape &s, int64_t slot, const float *k, const float *v,
                        const Cache &cache) {
    const int64_t block = slot / s.block_size;
    const int offset = int(slot % s.block_size), d = s.head_dim;
    for (int h = 0; h < s.num_kv_heads; h++) {
        T *key = head_of<T>(s, cache.key, block, h), *value = head_of<T>(s, cache.value, block, h);
        T *k_to = key + size_t(offset / W) * d * W + offset % W, *v_to = value + size_t(offset) * d;
        if constexpr (sizeof(T) == 1) {
            scales_of(s, key)[offset] = convert(k + h * d, d, k_to, W);
            scales_of(s, value)[offset] = convert(v + h * d, d, v_to, 1);
        } else {
            convert(k + h * d, d, k_to, W);
            convert(v + h * d, d, v_to, 1);
        }
    }
}

static void rope_and_cache(Pool &pool, const AttentionShape &s, const Batch &batch, const float *cosines,
                           const float *sines, const float *q_norm, const float *k_norm, float eps,
                           float *qkv, const Cache &cache) {
    const int d = s.head_dim, half = d / 2;
    const int width = (s.num_heads + 2 * s.num_kv_heads) * d;
    parallel(pool, batch.num_tokens, kRowsAtOnce, [&](int token) {
        float *row = qkv + size_t(token) * width;
        const float *c = cosines + size_t(batch.positions[token]) * half;
        const float *n = sines + size_t(batch.positions[token]) * half;
        for (int h = 0; h < s.num_heads + s.num_kv_heads; h++) {
            float *head = row + h * d;
            const float *norm = h < s.num_heads ? q_norm : k_norm;
            if (norm) norm_row(head, norm, d, eps, head);
            rotate(head, c, n, half);
        }
        const float *k = row + s.num_heads * d, *v = k + s.num_kv_heads * d;
        if (cache.type == CacheType::f32)
            write_token<float>(s, batch.slots[token], k, v, cache);
        else if (cache.type == CacheType::bf16)
            write_token<uint16_t>(s, batch.slots[token], k, v, cache);
        else
            write_token<int8_t>(s, batch.slots[token], k, v, cache);
    });
}
