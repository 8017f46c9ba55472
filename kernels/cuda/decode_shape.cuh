/* decode_shape.cuh: what the roles of the sm_90a decode kernel share: the shapes of its tiles, the
 * layout of shared memory, and rings of places in it. */
#ifndef SKV_CUDA_DECODE_SHAPE_CUH
#define SKV_CUDA_DECODE_SHAPE_CUH

#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/decode_items.cuh"

/* Rows: 8, or 16 for each row tile. Ctas: of a cluster that shares a leaf. Parts: CTAs alone that
 * each do a leaf's scores, and a part of V's columns. */
template <typename Type_, int Dim, int Keys, int Rows, int Ctas, int Parts = 1>
struct decode_shape {
  typedef Type_ Type;
  static constexpr int kDim = Dim, kKeys = Keys, kCtas = Ctas, kParts = Parts;
  static constexpr int kRowTiles = Rows > 16 ? 2 : 1, kRows = Rows == 8 ? 1 : 2; /* of a lane */
  static constexpr bool kSpread = Ctas > 1;
  static constexpr int kSlices = Ctas == 8 || Parts == 2 ? 8 : 4, kColumns = Dim / kSlices;
  static constexpr int kVectors = (kRows * (2 + kColumns / 4) + 3) / 4; /* of a lane's image */
  /* Children of a node that are merged at once; more of large ones would not fit registers. */
  static constexpr int kRadix = kRows * (2 + kColumns / 4) <= 12 ? 16 : 2;
  static constexpr int kScoreWarps = 4, kTurns = kScoreWarps / kRowTiles;
  static constexpr int kValueWarps = kSlices / Ctas / Parts;
  /* A CTA alone is three warpgroups, of which the first gives registers to the others. */
  static constexpr int kCopyWarps = kSpread ? 2 : 4;
  static constexpr int kScoreRegisters = 248, kValueRegisters = 216;
  static constexpr int kThreads = 32 * (kCopyWarps + kScoreWarps + kValueWarps);
  static constexpr int kMine = Dim / Ctas / Parts; /* columns of V */
  static constexpr int kKeyBytes = Keys * Dim * 2, kValueBytes = Keys * kMine * 2;
  static constexpr int kPitch = kMine < 64 ? kMine * 2 : 128; /* of a slab of V */
  static constexpr int kSpreadTiles = 2048 / Keys; /* of a leaf that a cluster shares, at most */
  static constexpr int kKeyStages = (kSpread || Parts > 1 ? 131072 : 98304) / kKeyBytes;
  static constexpr int kValueStages = (kSpread ? 40960 : Parts > 1 ? 65536 : 98304) / kValueBytes;
  static_assert(!kSpread || kSpreadTiles <= Ctas * kScoreWarps, "a tile for each warp, at most");
  static constexpr int kEntries = kSpread ? kSpreadTiles : kRowTiles == 1 ? 4 : 2;
  /* States that wait in shared memory while a piece is folded: as many as there is room for. */
  static constexpr int kEntryBytes = kRows * Keys * 16 + 512 * kRows;
  static constexpr int kRoom = 227 * 1024 - kKeyStages * kKeyBytes - kValueStages * kValueBytes -
                               kEntries * kRowTiles * kEntryBytes - 5120;
  static constexpr int kHeldBytes = kValueWarps * kRowTiles * kVectors * 512;
  static constexpr int kHeld = kSpread ? 0 : kRoom / kHeldBytes < 3 ? kRoom / kHeldBytes : 3;
};

/* What a score warp hands to the value warps: a tile for 16 rows, or for 8 of them. In `mass` is
 * what O and l before the tile are multiplied by, and what l grows by then. */
template <class Shape, bool Half> struct entry_of {
  uint4 weights[Shape::kKeys / 16][32]; /* as the products' A operand */
  float4 mass[32];                      /* factors of the lane's two rows, then masses */
  float4 e[32];                         /* x, y: exponents after the tile */
};
template <class Shape> struct entry_of<Shape, true> {
  uint4 weights[Shape::kKeys / 32][32]; /* the first row's part of two operands */
  float4 mass[32];                      /* factor, mass, exponent after the tile */
};
template <class Shape> using entry = entry_of<Shape, Shape::kRows == 1>;

template <class Shape> struct decode_shared {
  uint8_t k[Shape::kKeyStages][Shape::kKeyBytes];
  uint8_t v[Shape::kValueStages][Shape::kValueBytes];
  entry<Shape> entries[Shape::kEntries][Shape::kRowTiles];
  int4 seen[Shape::kScoreWarps][32];
  float4 token[Shape::kScoreWarps][32];
  float4 held[Shape::kValueWarps][Shape::kRowTiles]
             [Shape::kHeld ? Shape::kHeld * Shape::kVectors : 1][32]; /* pending states */
  float4 guess[Shape::kSpread ? 32 : 1]; /* exponents after a shared leaf's first tile */
  uint4 verdict[Shape::kSpread ? Shape::kSpreadTiles : 1]; /* x: whether tile n fits them */
  uint64_t k_full[Shape::kKeyStages], k_empty[Shape::kKeyStages];
  uint64_t v_full[Shape::kValueStages], v_empty[Shape::kValueStages];
  uint64_t entry_full[Shape::kEntries], entry_empty[Shape::kEntries];
  uint64_t token_full[Shape::kScoreWarps], guess_full, verdict_full;
};

/* The n-th use of a ring: its place, and the parity of waiting for it. */
template <int Places> struct nth {
  uint32_t place, parity;
  __device__ __forceinline__ nth(uint32_t n) : place(n % Places), parity(n / Places & 1) {
  }
};

/* Tiles of a shared leaf go to CTAs in runs of this many. */
template <class Shape> SKV_DEVICE uint32_t tiles_each(const decode_walk_t &walk) {
  return ((uint32_t)(walk.tile_end - walk.tile_begin) + Shape::kCtas - 1) / Shape::kCtas;
}

/* The warp has done with, or filled, a place. Each lane arrives for what it has read or written. */
SKV_DEVICE void arrive_all(uint64_t *barrier) {
  barrier_arrive(barrier);
}
/* Arrivals that so many warps make. */
SKV_DEVICE uint32_t arrivals_of(uint32_t warps) {
  return 32 * warps;
}

/* Which of those that share the units: a CTA, a cluster, or CTAs that share a leaf. */
template <class Shape> SKV_DEVICE int32_t my_part(void) {
  return (int32_t)(blockIdx.x / (Shape::kCtas * Shape::kParts));
}

/* Which part of V's columns is this CTA's. */
template <class Shape> SKV_DEVICE int32_t my_columns(void) {
  return Shape::kSpread ? (int32_t)cluster_rank() : (int32_t)(blockIdx.x % Shape::kParts);
}

#endif
