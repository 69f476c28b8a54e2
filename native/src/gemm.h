// y = x W^T for packed W, and what happens to y before it is stored.
//
// A panel holds 32 columns of W^T. One microkernel computes MR rows by NV vectors of columns, every
// output as one chain of fused multiply-adds over k = 0, 1, ... Which microkernel computes a row
// is chosen by speed alone: the chain is the same in all of them.
//
// Memory order inside a panel, at each k: groups of 2 W columns, in which for bf16 columns i and
// W + i are neighbours, so that a shift and a mask turn one load into two vectors.

template <class T> struct PanelOrder;
template <> struct PanelOrder<float> {
    static int place(int column) { return column; }
};
template <> struct PanelOrder<uint16_t> {
    static int place(int column) {
        int group = column / (2 * W), i = column % (2 * W);
        return group * 2 * W + (i < W ? 2 * i : 2 * (i - W) + 1);
    }
};

// Column of W^T that stands at `column` of a panel. A gated matrix [gate; up] is stored as 16 gate
// columns followed by the 16 up columns that they act on.
static inline int source_row(int panel, int column, int n, bool gated) {
    int row = gated ? (column < 16 ? 0 : n / 2) + panel * 16 + column % 16
                    : panel * kPanel + column;
    bool valid = gated ? panel * 16 + column % 16 < n / 2 : row < n;
    return valid ? row : -1;
}

template <class T>
static void pack_panels(Pool &pool, const T *rows, int n, int k, bool gated, T *panels) {
    int count = (n + kPanel - 1) / kPanel;
    parallel(pool, count, grain_for(pool, count), [&](int panel) {
        T *out = panels + size_t(panel) * k * kPanel;
        for (int column = 0; column < kPanel; column++) {
            int row = source_row(panel, column, n, gated);
            int place = PanelOrder<T>::place(column);
            for (int i = 0; i < k; i++)
                out[size_t(i) * kPanel + place] = row < 0 ? T(0) : rows[size_t(row) * k + i];
        }
    });
}

static void pack(Pool &pool, WeightType type, const void *rows, int n, int k, bool gated,
                 void *panels) {
    if (type == WeightType::f32)
        pack_panels(pool, static_cast<const float *>(rows), n, k, gated,
                    static_cast<float *>(panels));
    else
        pack_panels(pool, static_cast<const uint16_t *>(rows), n, k, gated,
                    static_cast<uint16_t *>(panels));
}

template <class T> static void unpack(const Weight &weight, int row, float *out) {
    const T *panel = static_cast<const T *>(weight.panels) + size_t(row / kPanel) * weight.k * kPanel;
    int place = PanelOrder<T>::place(row % kPanel);
    for (int i = 0; i < weight.k; i++) out[i] = to_float(panel[size_t(i) * kPanel + place]);
}

// MR rows by NV vectors. `tile` is [MR][kPanel].
template <int MR, int NV, class T>
static inline void micro(const float *x, int k, const T *panel, float *tile) {
    F acc[MR][NV];
#pragma GCC unroll 16
    for (int m = 0; m < MR; m++)
#pragma GCC unroll 4
        for (int v = 0; v < NV; v++) acc[m][v] = zero();
    for (int i = 0; i < k; i++) {
        F w[NV];
#pragma GCC unroll 4
        for (int v = 0; v < NV; v += 2) load_pair(panel + size_t(i) * kPanel + v * W, w[v], w[v + 1]);
#pragma GCC unroll 16
        for (int m = 0; m < MR; m++) {
            F s = splat(x[size_t(m) * k + i]);
#pragma GCC unroll 4
            for (int v = 0; v < NV; v++) acc[m][v] = fma(s, w[v], acc[m][v]);
        }
    }
#pragma GCC unroll 16
    for (int m = 0; m < MR; m++)
#pragma GCC unroll 4
        for (int v = 0; v < NV; v++) store(tile + m * kPanel + v * W, acc[m][v]);
}

// All 32 columns of `MR` rows; wide kernels pass over the panel once, narrow ones twice.
template <int MR, class T>
static inline void rows_of_panel(const float *x, int k, const T *panel, float *tile) {
    constexpr int kVectors = kPanel / W;
    if constexpr (MR * kVectors <= kMaxAccumulators) {
        micro<MR, kVectors>(x, k, panel, tile);
    } else {
        micro<MR, 2>(x, k, panel, tile);
        for (int v = 2; v < kVectors; v += 2) micro<MR, 2>(x, k, panel + v * W, tile + v * W);
    }
}

static inline F silu(F x) {
    return div(x, add(splat(1.0f), exp(sub(zero(), x))));
}
static inline F gelu_tanh(F x) {
    // 0.5 x (1 + tanh(u)) = x / (1 + e^(-2 u))
    F cube = mul(mul(x, x), x);
    F u = mul(splat(0.7978845608028654f), fma(splat(0.044715f), cube, x));
    return div(x, add(splat(1.0f), exp(mul(splat(-2.0f), u))));
}

static void finish(const Weight &weight, int panel, Epilogue epilogue, int rows, float *tile,
                   float *y, int ldy) {
    int width = weight.n - panel * kPanel < kPanel ? weight.n - panel * kPanel : kPanel;
    bool gate = epilogue == Epilogue::silu_gate || epilogue == Epilogue::gelu_gate;
    for (int m = 0; m < rows; m++) {
        float *row = tile + m * kPanel;
        if (weight.bias)
            for (int i = 0; i < kPanel; i += W)
                store(row + i, add(load(row + i), load(weight.bias + panel * kPanel + i)));
        if (gate) {
            for (int i = 0; i < 16; i += W) {
                F g = load(row + i);
                F a = epilogue == Epilogue::silu_gate ? silu(g) : gelu_tanh(g);
                store(row + i, mul(a, load(row + 16 + i)));
            }
        }
        float *out = y + size_t(m) * ldy + panel * (gate ? 16 : kPanel);
        int count = gate ? (weight.n / 2 - panel * 16 < 16 ? weight.n / 2 - panel * 16 : 16) : width;
        if (epilogue == Epilogue::add)
            for (int i = 0; i < count; i++) out[i] += row[i];
        else
            for (int i = 0; i < count; i++) out[i] = row[i];
    }
}

template <class T>
static void panel_times_rows(const Weight &weight, int panel, const float *x, int m,
                             Epilogue epilogue, float *y, int ldy) {
    const int k = weight.k;
    const T *p = static_cast<const T *>(weight.panels) + size_t(panel) * k * kPanel;
    float tile[kMaxRows * kPanel];
    for (int row = 0; row < m;) {
        int rows = m - row < kMaxRows ? m - row : kMaxRows;
        const float *xr = x + size_t(row) * k;
        switch (rows) {
#define OCTAVO_ROWS(MR)                                                                            \
    case MR:                                                                                       \
        if constexpr (MR <= kMaxRows) rows_of_panel<MR>(xr, k, p, tile);                           \
        break;
            OCTAVO_ROWS(1) OCTAVO_ROWS(2) OCTAVO_ROWS(3) OCTAVO_ROWS(4) OCTAVO_ROWS(5)
            OCTAVO_ROWS(6) OCTAVO_ROWS(7) OCTAVO_ROWS(8) OCTAVO_ROWS(9) OCTAVO_ROWS(10)
            OCTAVO_ROWS(11) OCTAVO_ROWS(12)
#undef OCTAVO_ROWS
        }
        finish(weight, panel, epilogue, rows, tile, y + size_t(row) * ldy, ldy);
        row += rows;
    }
}

static void gemm(Pool &pool, const Weight &weight, const float *x, int m, Epilogue epilogue,
                 float *y, int ldy) {
    const int panels = weight.num_panels();
    parallel(pool, panels, grain_for(pool, panels), [&](int panel) {
        if (weight.type == WeightType::f32)
            panel_times_rows<float>(weight, panel, x, m, epilogue, y, ldy);
        else
            panel_times_rows<uint16_t>(weight, panel, x, m, epilogue, y, ldy);
    });
}
