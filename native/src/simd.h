// A vector of floats for the instruction set that this translation unit is compiled for.
//
// Included once by each isa_*.cpp, inside that file's own namespace.
#if defined(OCTAVO_USE_AVX512)
constexpr int W = 16;
using F = __m512;
static inline F zero() { return _mm512_setzero_ps(); }
static inline F splat(float x) { return _mm512_set1_ps(x); }
static inline F load(const float *p) { return _mm512_loadu_ps(p); }
static inline void store(float *p, F x) { _mm512_storeu_ps(p, x); }
static inline F add(F a, F b) { return _mm512_add_ps(a, b); }
static inline F sub(F a, F b) { return _mm512_sub_ps(a, b); }
static inline F mul(F a, F b) { return _mm512_mul_ps(a, b); }
static inline F div(F a, F b) { return _mm512_div_ps(a, b); }
static inline F max(F a, F b) { return _mm512_max_ps(a, b); }
static inline F min(F a, F b) { return _mm512_min_ps(a, b); }
static inline F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
static inline F round_even(F x) {
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
// y where x >= lowest, 0 elsewhere
static inline F mask_below(F x, F lowest, F y) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, lowest, _CMP_GE_OQ), y);
}
// 2^n for whole n in [-126, 127]
static inline F power_of_two(F n) {
    __m512i i = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
    return _mm512_castsi512_ps(_mm512_slli_epi32(i, 23));
}
// 2 W bf16 values whose even places hold the first W columns, and odd places the others
static inline void load_pair(const uint16_t *p, F &first, F &second) {
    __m512i v = _mm512_loadu_si512(p);
    first = _mm512_castsi512_ps(_mm512_slli_epi32(v, 16));
    second = _mm512_castsi512_ps(_mm512_and_si512(v, _mm512_set1_epi32(int(0xffff0000))));
}
// W consecutive bf16 values
static inline F load(const uint16_t *p) {
    __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(v), 16));
}
#elif defined(OCTAVO_USE_AVX2)
constexpr int W = 8;
using F = __m256;
static inline F zero() { return _mm256_setzero_ps(); }
static inline F splat(float x) { return _mm256_set1_ps(x); }
static inline F load(const float *p) { return _mm256_loadu_ps(p); }
static inline void store(float *p, F x) { _mm256_storeu_ps(p, x); }
static inline F add(F a, F b) { return _mm256_add_ps(a, b); }
static inline F sub(F a, F b) { return _mm256_sub_ps(a, b); }
static inline F mul(F a, F b) { return _mm256_mul_ps(a, b); }
static inline F div(F a, F b) { return _mm256_div_ps(a, b); }
static inline F max(F a, F b) { return _mm256_max_ps(a, b); }
static inline F min(F a, F b) { return _mm256_min_ps(a, b); }
static inline F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
static inline F round_even(F x) {
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
static inline F mask_below(F x, F lowest, F y) {
    return _mm256_and_ps(y, _mm256_cmp_ps(x, lowest, _CMP_GE_OQ));
}
static inline F power_of_two(F n) {
    __m256i i = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(i, 23));
}
static inline void load_pair(const uint16_t *p, F &first, F &second) {
    __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(p));
    first = _mm256_castsi256_ps(_mm256_slli_epi32(v, 16));
    second = _mm256_castsi256_ps(_mm256_and_si256(v, _mm256_set1_epi32(int(0xffff0000))));
}
static inline F load(const uint16_t *p) {
    __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i *>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(v), 16));
}
#else
constexpr int W = 8;
struct F {
    float v[W];
};
template <class Op> static inline F each(Op op) {
    F r;
    for (int i = 0; i < W; i++) r.v[i] = op(i);
    return r;
}
static inline F zero() { return F{}; }
static inline F splat(float x) { return each([&](int) { return x; }); }
static inline F load(const float *p) { return each([&](int i) { return p[i]; }); }
static inline void store(float *p, F x) {
    for (int i = 0; i < W; i++) p[i] = x.v[i];
}
static inline F add(F a, F b) { return each([&](int i) { return a.v[i] + b.v[i]; }); }
static inline F sub(F a, F b) { return each([&](int i) { return a.v[i] - b.v[i]; }); }
static inline F mul(F a, F b) { return each([&](int i) { return a.v[i] * b.v[i]; }); }
static inline F div(F a, F b) { return each([&](int i) { return a.v[i] / b.v[i]; }); }
static inline F max(F a, F b) {
    return each([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
static inline F min(F a, F b) {
    return each([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
static inline F fma(F a, F b, F c) { return each([&](int i) { return a.v[i] * b.v[i] + c.v[i]; }); }
static inline F round_even(F x) {
    return each([&](int i) { return std::nearbyintf(x.v[i]); });
}
static inline float from_bits(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
}
static inline F mask_below(F x, F lowest, F y) {
    return each([&](int i) { return x.v[i] >= lowest.v[i] ? y.v[i] : 0.0f; });
}
static inline F power_of_two(F n) {
    return each([&](int i) { return from_bits(uint32_t(int(n.v[i]) + 127) << 23); });
}
static inline void load_pair(const uint16_t *p, F &first, F &second) {
    first = each([&](int i) { return from_bits(uint32_t(p[2 * i]) << 16); });
    second = each([&](int i) { return from_bits(uint32_t(p[2 * i + 1]) << 16); });
}
static inline F load(const uint16_t *p) {
    return each([&](int i) { return from_bits(uint32_t(p[i]) << 16); });
}
#endif

static inline void load_pair(const float *p, F &first, F &second) {
    first = load(p);
    second = load(p + W);
}

// Sum and maximum of all lanes, in lane order by halves: the same tree whatever the caller.
static inline float sum(F x) {
    float v[W];
    store(v, x);
    for (int h = W / 2; h; h /= 2)
        for (int i = 0; i < h; i++) v[i] += v[i + h];
    return v[0];
}
static inline float largest(F x) {
    float v[W];
    store(v, x);
    float m = v[0];
    for (int i = 1; i < W; i++) m = v[i] > m ? v[i] : m;
    return m;
}

// e^x, within 2 ulp for x in [-87, 88]; smaller x gives 0, -inf included. Cody-Waite reduction by
// ln 2 and a polynomial of degree 6 (Taylor's, on |r| <= ln(2) / 2).
static inline F exp(F x) {
    F lowest = splat(-87.0f);
    F clamped = min(max(x, lowest), splat(88.0f));
    F n = round_even(mul(clamped, splat(1.44269504088896341f)));
    F r = fma(n, splat(-0.693359375f), clamped);
    r = fma(n, splat(2.12194440e-4f), r);
    F p = splat(1.0f / 720);
    p = fma(p, r, splat(1.0f / 120));
    p = fma(p, r, splat(1.0f / 24));
    p = fma(p, r, splat(1.0f / 6));
    p = fma(p, r, splat(0.5f));
    p = fma(p, r, splat(1.0f));
    p = fma(p, r, splat(1.0f));
    F y = mul(p, power_of_two(n));
    return mask_below(x, lowest, y);
}

static inline uint16_t to_bf16(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    if ((bits & 0x7fffffff) > 0x7f800000) return uint16_t((bits >> 16) | 0x40); // NaN stays NaN
    return uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);                 // nearest, ties to even
}
static inline float to_float(uint16_t x) {
    uint32_t bits = uint32_t(x) << 16;
    float y;
    std::memcpy(&y, &bits, 4);
    return y;
}
static inline float to_float(float x) { return x; }

// Vectors of 4 W bytes, W lanes of four: the operands of integer dot products.
//
// dot(sums, w, x) adds to each lane the four products of unsigned w and signed x. Where sums are
// 16 bits wide, eight of them in a row cannot overflow as long as w is below 16; widen() makes W
// 32-bit sums of them.
//
// dot8(sums, w, x) is the same in 32 bits for w of any 8 bits, prepared by prepare8(); lanes are too
// large by kExcess times the sum of x.
#if defined(OCTAVO_USE_AVX512)
using I = __m512i;
static inline I zero_int() { return _mm512_setzero_si512(); }
static inline I load_bytes(const uint8_t *p) { return _mm512_loadu_si512(p); }
static inline I splat_four(const int8_t *p) {
    int32_t four;
    std::memcpy(&four, p, 4);
    return _mm512_set1_epi32(four);
}
static inline I low_nibbles(I x) { return _mm512_and_si512(x, _mm512_set1_epi8(15)); }
static inline I high_nibbles(I x) { return low_nibbles(_mm512_srli_epi16(x, 4)); }
static inline F to_floats(I x) { return _mm512_cvtepi32_ps(x); }
static inline F load_half(const uint16_t *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p)));
}
static inline F load(const int8_t *p) {
    __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i *>(p));
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(v));
}
// whole numbers in [-127, 127]
static inline void store_bytes(int8_t *p, F x) {
    _mm_storeu_si128(reinterpret_cast<__m128i *>(p), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(x)));
}
#if defined(OCTAVO_USE_VNNI)
constexpr int kExcess = 128;
static inline I dot(I sums, I w, I x) { return _mm512_dpbusd_epi32(sums, w, x); }
static inline I widen(I sums) { return sums; }
static inline I prepare8(I w) { return w; }
static inline I dot8(I sums, I w, I x) { return _mm512_dpbusd_epi32(sums, w, x); }
#else
constexpr int kExcess = 0;
static inline I dot(I sums, I w, I x) {
    return _mm512_add_epi16(sums, _mm512_maddubs_epi16(w, x));
}
static inline I widen(I sums) { return _mm512_madd_epi16(sums, _mm512_set1_epi16(1)); }
static inline I prepare8(I w) { return _mm512_xor_si512(w, _mm512_set1_epi8(-128)); }
static inline I dot8(I sums, I w, I x) {
    // |w| times x with the sign of w: the product of the two is at most 128 * 127 * 2.
    __mmask64 negative = _mm512_movepi8_mask(w);
    I flipped = _mm512_mask_sub_epi8(x, negative, zero_int(), x);
    return _mm512_add_epi32(sums, widen(_mm512_maddubs_epi16(_mm512_abs_epi8(w), flipped)));
}
#endif
#elif defined(OCTAVO_USE_AVX2)
using I = __m256i;
constexpr int kExcess = 0;
static inline I zero_int() { return _mm256_setzero_si256(); }
static inline I load_bytes(const uint8_t *p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i *>(p));
}
static inline I splat_four(const int8_t *p) {
    int32_t four;
    std::memcpy(&four, p, 4);
    return _mm256_set1_epi32(four);
}
static inline I low_nibbles(I x) { return _mm256_and_si256(x, _mm256_set1_epi8(15)); }
static inline I high_nibbles(I x) { return low_nibbles(_mm256_srli_epi16(x, 4)); }
static inline F to_floats(I x) { return _mm256_cvtepi32_ps(x); }
static inline F load_half(const uint16_t *p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p)));
}
static inline F load(const int8_t *p) {
    __m128i v = _mm_loadl_epi64(reinterpret_cast<const __m128i *>(p));
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(v));
}
static inline void store_bytes(int8_t *p, F x) {
    I i = _mm256_cvtps_epi32(x);
    __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(i), _mm256_extracti128_si256(i, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i *>(p), _mm_packs_epi16(words, words));
}
static inline I dot(I sums, I w, I x) {
    return _mm256_add_epi16(sums, _mm256_maddubs_epi16(w, x));
}
static inline I widen(I sums) { return _mm256_madd_epi16(sums, _mm256_set1_epi16(1)); }
static inline I prepare8(I w) { return _mm256_xor_si256(w, _mm256_set1_epi8(-128)); }
static inline I dot8(I sums, I w, I x) {
    // |w| times x with the sign of w: the product of the two is at most 128 * 127 * 2.
    I products = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
    return _mm256_add_epi32(sums, widen(products));
}
#else
struct I {
    int32_t v[W];
};
constexpr int kExcess = 128;
struct Bytes {
    uint8_t v[4 * W];
};
static inline I zero_int() { return I{}; }
static inline Bytes load_bytes(const uint8_t *p) {
    Bytes x;
    std::memcpy(x.v, p, sizeof x.v);
    return x;
}
struct Four {
    int8_t v[4];
};
static inline Four splat_four(const int8_t *p) {
    Four x;
    std::memcpy(x.v, p, 4);
    return x;
}
static inline Bytes low_nibbles(Bytes x) {
    for (uint8_t &b : x.v) b &= 15;
    return x;
}
static inline Bytes high_nibbles(Bytes x) {
    for (uint8_t &b : x.v) b >>= 4;
    return x;
}
static inline F to_floats(I x) { return each([&](int i) { return float(x.v[i]); }); }
static inline F load(const int8_t *p) { return each([&](int i) { return float(p[i]); }); }
static inline void store_bytes(int8_t *p, F x) {
    for (int i = 0; i < W; i++) p[i] = int8_t(x.v[i]);
}
static inline I dot(I sums, Bytes w, Four x) {
    for (int i = 0; i < W; i++)
        for (int j = 0; j < 4; j++) sums.v[i] += int32_t(w.v[4 * i + j]) * x.v[j];
    return sums;
}
static inline I widen(I sums) { return sums; }
static inline Bytes prepare8(Bytes w) { return w; }
static inline I dot8(I sums, Bytes w, Four x) { return dot(sums, w, x); }
#endif

// IEEE half precision without instructions for it.
static inline float half_to_float(uint16_t h) {
    uint32_t sign = uint32_t(h & 0x8000) << 16, exponent = (h >> 10) & 31, mantissa = h & 1023;
    float x;
    if (exponent == 0) {
        x = float(mantissa) * 5.9604644775390625e-8f; // 2^-24
        uint32_t bits;
        std::memcpy(&bits, &x, 4);
        bits |= sign;
        std::memcpy(&x, &bits, 4);
        return x;
    }
    uint32_t bits = sign | (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | mantissa << 13;
    std::memcpy(&x, &bits, 4);
    return x;
}
#if !defined(OCTAVO_USE_AVX512) && !defined(OCTAVO_USE_AVX2)
static inline F load_half(const uint16_t *p) { return each([&](int i) { return half_to_float(p[i]); }); }
#endif
