// y = x W^T for weights of 8 and 4 bits, with activations rounded to 8 bits, and packing for it.
//
// Integer sums are exact, so only the order of the groups matters: a row adds them up one after the
// other, whatever is computed beside it. Which microkernel computes a row is chosen by speed alone.

static inline int activation_groups(const Weight &w) { return w.k / kActivationGroup; }

// ------------------------------------------------------------------------------------- packing

static void pack_codes_int8(const Codes &from, const Weight &w, bool gated, int panel, uint8_t *out) {
    for (int column = 0; column < kPanel; column++) {
        int row = source_row(panel, column, w.n, gated);
        for (int i = 0; i < w.k; i++) {
            uint8_t code = row < 0 ? 128 : from.codes[size_t(row) * w.k + i];
            out[(size_t(i / 4) * kPanel + column) * 4 + i % 4] = code;
        }
    }
}

static void pack_codes_int4(const Codes &from, const Weight &w, bool gated, int panel, uint8_t *out) {
    std::memset(out, 0, w.panel_bytes());
    for (int column = 0; column < kPanel; column++) {
        int row = source_row(panel, column, w.n, gated);
        if (row < 0) continue;
        for (int i = 0; i < w.k; i++) {
            int step = i % 32 / 4;
            uint8_t code = from.codes[size_t(row) * w.k + i] & 15;
            size_t place = (size_t(i / 32) * 4 + step % 4) * kPanel + column;
            out[place * 4 + i % 4] |= step < 4 ? code : uint8_t(code << 4);
        }
    }
}

static void pack_codes(Pool &pool, const Codes &from, const Weight &w, bool gated, uint8_t *panels,
                       uint16_t *scales, uint16_t *minimums) {
    const int count = w.num_panels(), groups = w.k / w.group;
    parallel(pool, count, grain_for(pool, count), [&](int panel) {
        uint8_t *out = panels + w.panel_bytes() * size_t(panel);
        if (w.type == WeightType::int8)
            pack_codes_int8(from, w, gated, panel, out);
        else
            pack_codes_int4(from, w, gated, panel, out);
        for (int column = 0; column < kPanel; column++) {
            int row = source_row(panel, column, w.n, gated);
            for (int g = 0; g < groups; g++) {
                size_t to = (size_t(panel) * groups + g) * kPanel + column;
                size_t at = size_t(row < 0 ? 0 : row) * groups + g;
                scales[to] = row < 0 ? uint16_t(0) : from.scales[at];
                if (minimums) minimums[to] = row < 0 ? uint16_t(0) : from.minimums[at];
            }
        }
    });
}

static void unpack_codes(const Weight &w, int row, float *out) {
    const int panel = row / kPanel, column = row % kPanel, groups = w.k / w.group;
    const uint8_t *codes = static_cast<const uint8_t *>(w.panels) + w.panel_bytes() * size_t(panel);
    for (int i = 0; i < w.k; i++) {
        size_t at = (size_t(panel) * groups + i / w.group) * kPanel + column;
        float scale = half_to_float(w.scales[at]);
        if (w.type == WeightType::int8) {
            int code = codes[(size_t(i / 4) * kPanel + column) * 4 + i % 4];
            out[i] = scale * float(code - 128);
            continue;
        }
        int step = i % 32 / 4;
        int both = codes[((size_t(i / 32) * 4 + step % 4) * kPanel + column) * 4 + i % 4];
        int code = step < 4 ? both & 15 : both >> 4;
        out[i] = w.minimums ? scale * float(code) + half_to_float(w.minimums[at])
                            : scale * float(code - 8);
    }
}

static void unpack_row(const Weight &weight, int row, float *out) {
    if (is_integer(weight.type))
        unpack_codes(weight, row, out);
    else if (weight.type == WeightType::f32)
        unpack<float>(weight, row, out);
    else
        unpack<uint16_t>(weight, row, out);
}

// -------------------------------------------------------------------------------- activations

// 32 values of x as whole multiples of the largest magnitude / 127. What is not finite makes
// the scale NaN, so that it is seen in the result instead of being rounded to some number.
static inline void quantize_group(const float *x, int8_t *values, float &scale, float &offset) {
    F peaks = zero(), spoils = zero();
    for (int i = 0; i < kActivationGroup; i += W) {
        F v = load(x + i);
        peaks = max(max(v, sub(zero(), v)), peaks);
        spoils = fma(v, zero(), spoils);
    }
    const float peak = largest(peaks), spoilt = sum(spoils);
    // A peak whose inverse is not finite is as good as zero.
    const bool usable = spoilt == 0.0f && peak > 1e-36f;
    const F inverse = splat(usable ? 127.0f / peak : 0.0f);
    F totals = zero();
    for (int i = 0; i < kActivationGroup; i += W) {
        F y = usable ? round_even(mul(load(x + i), inverse)) : zero();
        store_bytes(values + i, y);
        totals = add(totals, y);
    }
    scale = (usable ? peak / 127.0f : 0.0f) + spoilt;
    offset = scale * sum(totals);
}

static void quantize(Pool &pool, const Weight &w, const float *x, int m, const Activations &out) {
    const int groups = activation_groups(w);
    parallel(pool, m, kRowsAtOnce, [&](int row) {
        for (int g = 0; g < groups; g++) {
            const size_t at = size_t(row) * groups + g, begin = at * kActivationGroup;
            quantize_group(x + begin, out.values + begin, out.scales[at], out.offsets[at]);
        }
    });
}

// -------------------------------------------------------------------------------- microkernels

// A few quantised rows, and the part of a panel that they meet: NV vectors of columns from `column`.
struct Meeting {
    const int8_t *x;      // [MR, k]
    const float *scales;  // [MR, groups]
    const float *offsets; // [MR, groups]
    int k;
    int groups;
};

// Sums of one group into the running result: scale * sum * scale of x, plus low * offset of x, which
// is what the codes' own offset adds to all of them.
template <int MR, int NV, bool IsOffset>
static inline void add_group(const Meeting &a, int g, const F (&low)[NV], I (&sums)[MR][NV],
                             const uint16_t *scales, F (&acc)[MR][NV]) {
#pragma GCC unroll 4
    for (int v = 0; v < NV; v++) {
        F scale = load_half(scales + v * W);
#pragma GCC unroll 16
        for (int m = 0; m < MR; m++) {
            F y = mul(to_floats(sums[m][v]), scale);
            acc[m][v] = fma(y, splat(a.scales[m * a.groups + g]), acc[m][v]);
            if constexpr (IsOffset)
                acc[m][v] = fma(low[v], splat(a.offsets[m * a.groups + g]), acc[m][v]);
        }
    }
}

// `per_scale`: groups of activations that one scale of the weight covers.
template <int MR, int NV, bool Is4>
static inline void micro_groups(const Meeting &a, const uint8_t *panel, int per_scale,
                                const uint16_t *scales, const uint16_t *minimums, float *tile) {
    const int bytes = Is4 ? 16 * kPanel : 32 * kPanel; // of a group
    // Codes that do not count from their own zero.
    constexpr bool kIsOffset = Is4 || kExcess != 0;
    const F zero_code = splat(Is4 ? -8.0f : -float(kExcess));
    F acc[MR][NV];
#pragma GCC unroll 16
    for (int m = 0; m < MR; m++)
#pragma GCC unroll 4
        for (int v = 0; v < NV; v++) acc[m][v] = zero();
    size_t at = 0; // of the current group's scales
    for (int g = 0, until_next = per_scale; g < a.groups; g++) {
        const uint8_t *p = panel + size_t(g) * bytes;
        const int8_t *x = a.x + size_t(g) * 32;
        I sums[MR][NV];
#pragma GCC unroll 16
        for (int m = 0; m < MR; m++)
#pragma GCC unroll 4
            for (int v = 0; v < NV; v++) sums[m][v] = zero_int();
        // Unrolled, its loads are moved ahead of each other and spill registers.
#pragma GCC unroll 1
        for (int s = 0; s < (Is4 ? 4 : 8); s++) {
#pragma GCC unroll 4
            for (int v = 0; v < NV; v++) {
                auto codes = load_bytes(p + (size_t(s) * kPanel + v * W) * 4);
                if constexpr (Is4) {
                    auto low = low_nibbles(codes), high = high_nibbles(codes);
#pragma GCC unroll 16
                    for (int m = 0; m < MR; m++) {
                        const int8_t *xm = x + size_t(m) * a.k + 4 * s;
                        sums[m][v] = dot(sums[m][v], low, splat_four(xm));
                        sums[m][v] = dot(sums[m][v], high, splat_four(xm + 16));
                    }
                } else {
                    auto ready = prepare8(codes);
#pragma GCC unroll 16
                    for (int m = 0; m < MR; m++)
                        sums[m][v] = dot8(sums[m][v], ready,
                                          splat_four(x + size_t(m) * a.k + 4 * s));
                }
            }
        }
        if constexpr (Is4) {
#pragma GCC unroll 16
            for (int m = 0; m < MR; m++)
#pragma GCC unroll 4
                for (int v = 0; v < NV; v++) sums[m][v] = widen(sums[m][v]);
        }
        F low[NV];
#pragma GCC unroll 4
        for (int v = 0; v < NV; v++) {
            if constexpr (kIsOffset)
                low[v] = minimums ? load_half(minimums + at + v * W)
                                  : mul(load_half(scales + at + v * W), zero_code);
        }
        add_group<MR, NV, kIsOffset>(a, g, low, sums, scales + at, acc);
        if (--until_next == 0) at += kPanel, until_next = per_scale;
    }
#pragma GCC unroll 16
    for (int m = 0; m < MR; m++)
#pragma GCC unroll 4
        for (int v = 0; v < NV; v++) store(tile + m * kPanel + v * W, acc[m][v]);
}

template <int MR, int NV>
static inline void micro_integer(const Weight &w, const Meeting &a, int panel, int column,
                                 float *tile) {
    const uint8_t *p = static_cast<const uint8_t *>(w.panels) + w.panel_bytes() * size_t(panel);
    p += size_t(column) * 4;
    float *out = tile + column;
    const size_t at = size_t(panel) * (w.k / w.group) * kPanel + column;
    const uint16_t *minimums = w.minimums ? w.minimums + at : nullptr;
    const int per_scale = w.group / kActivationGroup;
    if (w.type == WeightType::int4)
        micro_groups<MR, NV, true>(a, p, per_scale, w.scales + at, minimums, out);
    else
        micro_groups<MR, NV, false>(a, p, per_scale, w.scales + at, nullptr, out);
}

// All 32 columns of MR rows. A single row passes over the panel once, in the order of memory.
template <int MR>
static inline void integer_rows(const Weight &w, const Meeting &a, int panel, float *tile) {
    constexpr int kVectors = kPanel / W;
    constexpr int NV = MR * kVectors <= kMaxIntegerSums ? kVectors
                       : MR * 2 <= kMaxIntegerSums      ? 2
                                                        : 1;
    for (int v = 0; v < kVectors; v += NV) micro_integer<MR, NV>(w, a, panel, v * W, tile);
}

static void integer_panel(const Weight &w, int panel, const Activations &x, int m,
                          Epilogue epilogue, float *y, int ldy) {
    const int groups = activation_groups(w);
    float tile[kMaxRows * kPanel];
    for (int row = 0; row < m;) {
        int rows = m - row < kMaxRows ? m - row : kMaxRows;
        const Meeting a{x.values + size_t(row) * w.k, x.scales + size_t(row) * groups,
                        x.offsets + size_t(row) * groups, w.k, groups};
        switch (rows) {
#define OCTAVO_ROWS(MR)                                                                            \
    case MR:                                                                                       \
        if constexpr (MR <= kMaxRows) integer_rows<MR>(w, a, panel, tile);                         \
        break;
            OCTAVO_ROWS(1) OCTAVO_ROWS(2) OCTAVO_ROWS(3) OCTAVO_ROWS(4) OCTAVO_ROWS(5)
            OCTAVO_ROWS(6) OCTAVO_ROWS(7) OCTAVO_ROWS(8) OCTAVO_ROWS(9) OCTAVO_ROWS(10)
            OCTAVO_ROWS(11) OCTAVO_ROWS(12)
#undef OCTAVO_ROWS
        }
        finish(w, panel, epilogue, rows, tile, y + size_t(row) * ldy, ldy);
        row += rows;
    }
}

static void gemm_integer(Pool &pool, const Weight &w, const Activations &x, int m,
                         Epilogue epilogue, float *y, int ldy) {
    const int panels = w.num_panels();
    parallel(pool, panels, grain_for(pool, panels),
             [&](int panel) { integer_panel(w, panel, x, m, epilogue, y, ldy); });
}
