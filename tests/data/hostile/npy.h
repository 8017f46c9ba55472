/* npy.h: .npy files that must be refused, and a word that the message must hold. Used by
 * tests/test_npy.c, and as seeds by tests/fuzz. */
#ifndef HOSTILE_NPY_H
#define HOSTILE_NPY_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct hostile_npy {
  const char *literal; /* the header's text, padding aside */
  int64_t data_bytes;  /* zeros after the header */
  const char *says;
} hostile_npy_t;

#define F "'fortran_order': False"
#define D(descr) "{'descr': '" descr "', " F ", 'shape': (4,), }"
#define S(shape) "{'descr': '<f4', " F ", 'shape': " shape ", }"
#define DICT "is not a dict"
#define DTYPE "is not supported"

static const hostile_npy_t hostile_npy[] = {
    /* dtypes */
    {D(">f4"), 16, "big-endian"},
    {D(">f2"), 8, "big-endian"},
    {D(">u2"), 8, "big-endian"},
    {D("<f8"), 32, DTYPE},
    {D("=f4"), 16, DTYPE},
    {D("f4"), 16, DTYPE},
    {D("float32"), 16, DTYPE},
    {D("|u1"), 4, DTYPE},
    {D("|i1"), 4, DTYPE},
    {D("|b1"), 4, DTYPE},
    {D("<i2"), 8, DTYPE},
    {D("<i4"), 16, DTYPE},
    {D("<u4"), 16, DTYPE},
    {D("<u2"), 8, "--dtype bf16"},
    {D("<c8"), 32, DTYPE},
    {D("<f16"), 64, DTYPE},
    {D("<U1"), 16, DTYPE},
    {D("|S4"), 16, DTYPE},
    {D("|V2"), 8, DTYPE},
    {D("|O"), 32, DTYPE},
    {D("O"), 32, DTYPE},
    {D("<M8[ns]"), 32, DTYPE},
    {D(""), 16, DTYPE},
    {D("<f4 "), 16, DTYPE},
    {D(" <f4"), 16, DTYPE},
    {D("<F4"), 16, DTYPE},
    {D("<f4<f4<f4<f4<f4<f4<f4<f4"), 16, DTYPE},
    {D("<f4\\x00"), 16, DICT},
    {D("<f4\x01"), 16, DICT},
    {D("<f4\x1b[2J"), 16, DICT},
    {D("<f\xe2\x80\xae"), 16, DICT},
    {"{'descr': [('a', '<f4')], " F ", 'shape': (4,), }", 16, DICT},
    {"{'descr': ('<f4', (2,)), " F ", 'shape': (2,), }", 16, DICT},
    {"{'descr': {'names': ['a'], 'formats': ['<f4']}, " F ", 'shape': (4,), }", 16, DICT},
    {"{'descr': None, " F ", 'shape': (4,), }", 16, DICT},
    {"{'descr': u'<f4', " F ", 'shape': (4,), }", 16, DICT},
    {"{'descr': b'<f4', " F ", 'shape': (4,), }", 16, DICT},
    {"{'descr': '<' 'f4', " F ", 'shape': (4,), }", 16, DICT},
    {"{'descr': '<f4, " F ", 'shape': (4,), }", 16, DICT},
    {"{'descr': '<f4\", " F ", 'shape': (4,), }", 16, DICT},
    /* order */
    {"{'descr': '<f4', 'fortran_order': True, 'shape': (2, 2), }", 16, "Fortran"},
    {"{'descr': '<f4', 'fortran_order': True, 'shape': (4,), }", 16, "Fortran"},
    {"{'descr': '<f4', 'fortran_order': 0, 'shape': (4,), }", 16, DICT},
    {"{'descr': '<f4', 'fortran_order': 1, 'shape': (4,), }", 16, DICT},
    {"{'descr': '<f4', 'fortran_order': false, 'shape': (4,), }", 16, DICT},
    {"{'descr': '<f4', 'fortran_order': 'False', 'shape': (4,), }", 16, DICT},
    {"{'descr': '<f4', 'fortran_order': None, 'shape': (4,), }", 16, DICT},
    {"{'descr': '<f4', 'fortran_order': FalseTrue, 'shape': (4,), }", 16, DICT},
    {"{'descr': '<f4', 'fortran_order': not True, 'shape': (4,), }", 16, DICT},
    /* shapes */
    {S("(4194305, 4194305, 211106198978564)"), 16, "overflow"},
    {S("(4294967296, 4294967296)"), 16, "overflow"},
    {S("(9223372036854775807,)"), 16, "overflow"},
    {S("(9223372036854775807, 0)"), 0, "overflow"},
    {S("(0, 4294967296, 4294967296)"), 0, "overflow"},
    {S("(2305843009213693952,)"), 16, "overflow"},
    {S("(9223372036854775808,)"), 16, DICT},
    {S("(18446744073709551620,)"), 16, DICT},
    {S("(340282366920938463463374607431768211460,)"), 16, DICT},
    {S("(-4,)"), 16, DICT},
    {S("(-1, -4)"), 16, DICT},
    {S("(+4,)"), 16, DICT},
    {S("(4.0,)"), 16, DICT},
    {S("(4e0,)"), 16, DICT},
    {S("(0x4,)"), 16, DICT},
    {S("(4L,)"), 16, DICT},
    {S("(4_0,)"), 160, DICT},
    {S("('4',)"), 16, DICT},
    {S("(True,)"), 4, DICT},
    {S("(2 2)"), 16, DICT},
    {S("(2,,2)"), 16, DICT},
    {S("(,)"), 4, DICT},
    {S("(,4)"), 16, DICT},
    {S("(4)"), 16, DICT},
    {S("4"), 16, DICT},
    {S("[4]"), 16, DICT},
    {S("((4,),)"), 16, DICT},
    {S("(2*2,)"), 16, DICT},
    {S("(4,"), 16, DICT},
    {S("None"), 16, DICT},
    {S("(1, 1, 1, 1, 1, 1, 1, 1, 4)"), 16, "8 dimensions"},
    {S("(\xd9\xa4,)"), 16, DICT},
    {S("(5,)"), 16, "truncated"},
    {S("(4,)"), 0, "truncated"},
    {S("(4,)"), 15, "truncated"},
    {S("(1000000000000,)"), 16, "truncated"},
    {S("()"), 0, "truncated"},
    {S("(4,)"), 17, "follow"},
    {S("(3,)"), 16, "follow"},
    {S("(0,)"), 1, "follow"},
    {S("()"), 8, "follow"},
    {S("(4, 0, 4)"), 64, "follow"},
    /* keys */
    {"{'descr': '<f4', " F ", }", 16, DICT},
    {"{'descr': '<f4', 'shape': (4,), }", 16, DICT},
    {"{" F ", 'shape': (4,), }", 16, DICT},
    {"{}", 0, DICT},
    {"", 0, DICT},
    {"None", 0, DICT},
    {"{'descr': '<f4', 'descr': '<f4', " F ", 'shape': (4,), }", 16, DICT},
    {"{'descr': '<f4', " F ", " F ", 'shape': (4,), }", 16, DICT},
    {"{'descr': '<f4', " F ", 'shape': (4,), 'shape': (4,), }", 16, DICT},
    {"{'descr': '<f4', " F ", 'shape': (4,), 'extra': 1, }", 16, DICT},
    {"{'Descr': '<f4', " F ", 'shape': (4,), }", 16, DICT},
    {"{'descr ': '<f4', " F ", 'shape': (4,), }", 16, DICT},
    {"{'descr': '<f4', 'fortran_order_of_it': False, 'shape': (4,), }", 16, DICT},
    {"{descr: '<f4', " F ", 'shape': (4,), }", 16, DICT},
    {"{1: '<f4', " F ", 'shape': (4,), }", 16, DICT},
    /* structure */
    {"{'descr': '<f4', " F ", 'shape': (4,)", 16, DICT},
    {"'descr': '<f4', " F ", 'shape': (4,), }", 16, DICT},
    {"{'descr': '<f4' " F " 'shape': (4,) }", 16, DICT},
    {"{'descr' '<f4', " F ", 'shape': (4,), }", 16, DICT},
    {"{'descr': '<f4',, " F ", 'shape': (4,), }", 16, DICT},
    {"{, 'descr': '<f4', " F ", 'shape': (4,), }", 16, DICT},
    {"{'descr': '<f4', " F ", 'shape': (4,), ,}", 16, DICT},
    {"{'descr': '<f4', " F ", 'shape': (4,), }}", 16, DICT},
    {"{'descr': '<f4', " F ", 'shape': (4,), } # text", 16, DICT},
    {"{'descr': '<f4', " F ", 'shape': (4,), }\n{}", 16, DICT},
    {"[{'descr': '<f4', " F ", 'shape': (4,), }]", 16, DICT},
    {"dict(descr='<f4', fortran_order=False, shape=(4,))", 16, DICT},
    {"{'descr': __import__('os').getcwd(), " F ", 'shape': (4,), }", 16, DICT},
    {"{'descr': '<f4', " F ", 'shape': (4,), **{}}", 16, DICT},
    {"{'descr': '<f4'\f, " F ", 'shape': (4,), }", 16, DICT},
    {"((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((", 0, DICT},
    {"{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{", 0, DICT},
    {"\xff\xfe\xfd", 0, DICT},
};

#undef F
#undef D
#undef S
#undef DICT
#undef DTYPE

/* Files whose fault lies before the header's text: whole bytes. */
typedef struct hostile_bytes {
  const char *bytes;
  size_t count;
  const char *says;
} hostile_bytes_t;

#define B(text) text, sizeof text - 1
static const hostile_bytes_t hostile_npy_bytes[] = {
    {B(""), "not a .npy file"},
    {B("\x93"), "not a .npy file"},
    {B("\x93NUMPY"), "not a .npy file"},
    {B("\x93NUMPY\x01\x00"), "not a .npy file"},
    {B("\x93NUMPY\x01\x00\x10"), "not a .npy file"},
    {B("\x93NUMPZ\x01\x00\x02\x00{}"), "not a .npy file"},
    {B("\x13NUMPY\x01\x00\x02\x00{}"), "not a .npy file"},
    {B("NUMPY\x01\x00\x02\x00{}aaaa"), "not a .npy file"},
    {B("PK\x03\x04\x14\x00\x00\x00\x00\x00 a zip"), "not a .npy file"},
    {B("\x80\x04\x95 a pickle, not an array"), "not a .npy file"},
    {B("\x93NUMPY\x00\x00\x02\x00{}"), "version 0.0"},
    {B("\x93NUMPY\x00\x01\x02\x00{}"), "version 0.1"},
    {B("\x93NUMPY\x01\x01\x02\x00{}"), "version 1.1"},
    {B("\x93NUMPY\x02\x07\x02\x00\x00\x00{}"), "version 2.7"},
    {B("\x93NUMPY\x04\x00\x02\x00\x00\x00{}"), "version 4.0"},
    {B("\x93NUMPY\xff\xff\x02\x00\x00\x00{}"), "version 255.255"},
    {B("\x93NUMPY\x02\x00\xff\xff\xff\xff"), "claims 4294967295"},
    {B("\x93NUMPY\x03\x00\xff\xff\xff\xff"), "claims 4294967295"},
    {B("\x93NUMPY\x03\x00\x00\x00\x00\x80"), "claims 2147483648"},
    {B("\x93NUMPY\x02\x00\x01\x00"), "truncated"},
    {B("\x93NUMPY\x02\x00\x01\x00\x00"), "truncated"},
    {B("\x93NUMPY\x02\x00\x01\x00\x00\x00"), "truncated"},
    {B("\x93NUMPY\x01\x00\xff\xff{}"), "claims 65535"},
    {B("\x93NUMPY\x01\x00\x03\x00{}"), "claims 3"},
    {B("\x93NUMPY\x01\x00\x00\x00"), "is not a dict"},
    {B("\x93NUMPY\x01\x00\x04\x00{'d'"), "is not a dict"},
};

#define HOSTILE_COUNT(table) (sizeof(table) / sizeof(table)[0])

/* A whole file of version `major`.0 around a header text; the caller frees it. */
static inline unsigned char *hostile_npy_file(int major, const char *literal, int64_t data_bytes,
                                              size_t *file_bytes) {
  size_t prefix = major == 1 ? 10 : 12, text_bytes = strlen(literal);
  size_t head_bytes = (prefix + text_bytes + 1 + 63) / 64 * 64;
  *file_bytes = head_bytes + (size_t)data_bytes;
  unsigned char *file = calloc(1, *file_bytes);
  if (!file)
    abort();
  memset(file + prefix, ' ', head_bytes - prefix);
  memcpy(file, "\x93NUMPY", 6);
  file[6] = (unsigned char)major;
  for (size_t i = 8; i < prefix; i++)
    file[i] = (unsigned char)((head_bytes - prefix) >> 8 * (i - 8));
  memcpy(file + prefix, literal, text_bytes);
  file[head_bytes - 1] = '\n';
  return file;
}

#endif
