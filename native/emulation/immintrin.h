// Stands in for the compiler's header where the AVX-512 kernels are compiled without AVX-512, to test
// them on machines that lack it (make test-emulated). SIMDe (Debian: libsimde-dev) knows most of the
// intrinsics by name; the others are here, one loop each.
#pragma once
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx2.h>
#include <simde/x86/avx512.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#ifndef _MM_FROUND_NO_EXC
#define _MM_FROUND_NO_EXC 8
#endif
#undef _mm512_madd_epi16 // an alias with the wrong number of arguments in SIMDe 0.7.4

typedef uint64_t __mmask64;

namespace emulated {

template <class T, int N> struct Lanes {
    T v[N];
};

template <class To, class From> static inline To as(const From &from) {
    static_assert(sizeof(To) == sizeof(From), "the same bits");
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}

// Each lane of `From` as a value of `To`.
template <class To, class From, class Out, class In> static inline Out convert(const In &in) {
    auto from = as<Lanes<From, 16>>(in);
    Lanes<To, 16> to;
    for (int i = 0; i < 16; i++) to.v[i] = static_cast<To>(from.v[i]);
    return as<Out>(to);
}

} // namespace emulated

static inline __m512i _mm512_cvtps_epi32(__m512 a) {
    auto x = emulated::as<emulated::Lanes<float, 16>>(a);
    emulated::Lanes<int32_t, 16> y;
    for (int i = 0; i < 16; i++) y.v[i] = static_cast<int32_t>(std::nearbyintf(x.v[i]));
    return emulated::as<__m512i>(y);
}
static inline __m512i _mm512_cvtepu16_epi32(__m256i a) {
    return emulated::convert<int32_t, uint16_t, __m512i>(a);
}
static inline __m512 _mm512_cvtepi32_ps(__m512i a) {
    return emulated::convert<float, int32_t, __m512>(a);
}
static inline __m512i _mm512_cvtepi8_epi32(__m128i a) {
    return emulated::convert<int32_t, int8_t, __m512i>(a);
}
static inline __m512 _mm512_cvtph_ps(__m256i a) {
    return emulated::convert<float, _Float16, __m512>(a);
}
static inline __m512i _mm512_madd_epi16(__m512i a, __m512i b) {
    auto x = emulated::as<emulated::Lanes<int16_t, 32>>(a);
    auto y = emulated::as<emulated::Lanes<int16_t, 32>>(b);
    emulated::Lanes<int32_t, 16> z;
    for (int i = 0; i < 16; i++)
        z.v[i] = x.v[2 * i] * y.v[2 * i] + x.v[2 * i + 1] * y.v[2 * i + 1];
    return emulated::as<__m512i>(z);
}
