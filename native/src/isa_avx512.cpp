// The kernels for AVX-512 (F, BW, VL, DQ).
//
// Everything here is in an unnamed namespace, and no template of the standard library is used with a
// type from outside it: such an instance could be merged with another file's, and then run on a
// processor without these instructions.
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <immintrin.h>

#include "kernels.h"

#define OCTAVO_USE_AVX512

namespace octavo {
namespace {

constexpr int kMaxAccumulators = 24; // vectors of sums that fit in the registers
constexpr int kMaxIntegerSums = 12; // the same, where integers and floats are summed
constexpr int kMaxRows = 12;
#include "parallel.h"
#include "simd.h"
#include "gemm.h"
#include "integer.h"
#include "rows.h"
#include "attention.h"

const Kernels table = {"avx512", W, pack, pack_codes, unpack_row, gemm, quantize, gemm_integer,
                       rms_norm, rope_and_cache, attention};

} // namespace

const Kernels *kernels_avx512() { return &table; }

} // namespace octavo
