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

static void rms_norm(const float *x, const float *weight, int rows, int width, int ldx, float eps,
                     float *y) {
#pragma omp parallel for schedule(static) if (rows > 8)
    for (int row = 0; row < rows; row++)
        norm_row(x + size_t(row) * ldx, weight, width, eps, y + size_t(row) * width);
}

static inline void rotate(float *head, const float *cosines, const float *sines, int half) {
    for (int i = 0; i < half; i++) {
        float a = head[i], b = head[i + half];
        head[i] = a * cosines[i] - b * sines[i];
        head[i + half] = b * cosines[i] + a * sines[i];
    }
}

static inline float convert(float x, float) { return x; }
static inline uint16_t convert(float x, uint16_t) { return to_bf16(x); }

template <class T>
static void write_token(const AttentionShape &s, int64_t slot, const float *k, const float *v,
                        const Cache &cache) {
    const int64_t block = slot / s.block_size;
    const int offset = int(slot % s.block_size), d = s.head_dim;
    const size_t per_head = size_t(s.block_size) * d;
    for (int h = 0; h < s.num_kv_heads; h++) {
        size_t base = (size_t(block) * s.num_kv_heads + h) * per_head;
        T *key = static_cast<T *>(cache.key) + base + size_t(offset / W) * d * W + offset % W;
        T *value = static_cast<T *>(cache.value) + base + size_t(offset) * d;
        for (int i = 0; i < d; i++) {
            key[size_t(i) * W] = convert(k[h * d + i], T());
            value[i] = convert(v[h * d + i], T());
        }
    }
}

static void rope_and_cache(const AttentionShape &s, const Batch &batch, const float *cosines,
                           const float *sines, const float *q_norm, const float *k_norm, float eps,
                           float *qkv, const Cache &cache) {
    const int d = s.head_dim, half = d / 2;
    const int width = (s.num_heads + 2 * s.num_kv_heads) * d;
#pragma omp parallel for schedule(static) if (batch.num_tokens > 4)
    for (int token = 0; token < batch.num_tokens; token++) {
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
        else
            write_token<uint16_t>(s, batch.slots[token], k, v, cache);
    }
}
