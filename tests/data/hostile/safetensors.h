/* safetensors.h: safetensors files that must be refused, and a word that the message must hold.
 * Used by tests/test_safetensors.c, and as seeds by tests/fuzz. */
#ifndef HOSTILE_SAFETENSORS_H
#define HOSTILE_SAFETENSORS_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct hostile_safetensors {
  const char *json;
  int64_t data_bytes; /* zeros after the header */
  const char *says;
} hostile_safetensors_t;

#define T(name, dtype, shape, offsets)                                                             \
  "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"
#define A T("a", "F32", "[2]", "[0,8]")
#define SHAPE(shape) "{" T("a", "F32", shape, "[0,8]") "}"
#define OFFSETS(offsets) "{" T("a", "F32", "[2]", offsets) "}"
#define NAME(name) "{" T(name, "F32", "[2]", "[0,8]") "}"
#define TEXT(text) "{\"__metadata__\":{\"x\":\"" text "\"}," A "}"
#define FIELD "a field of a tensor"
#define LIST "not a list"
#define TWO "not two"
#define AGREE "disagree"
#define NAMED "name cannot be read"

static const hostile_safetensors_t hostile_safetensors[] = {
    /* the object */
    {" {" A "}", 8, "start with '{'"},
    {"\n{" A "}", 8, "start with '{'"},
    {"\xef\xbb\xbf{" A "}", 8, "start with '{'"},
    {"[" A "]", 8, "start with '{'"},
    {"null", 0, "start with '{'"},
    {"\"a\"", 0, "start with '{'"},
    {"}{", 0, "start with '{'"},
    {"{ ", 0, NAMED},
    {"{{", 0, NAMED},
    {"{,}", 0, NAMED},
    {"{" A, 8, "does not end"},
    {"{" A ",}", 8, NAMED},
    {"{" A "]", 8, "does not end"},
    {"{" A "}}", 8, "something follows"},
    {"{" A "}{}", 8, "something follows"},
    {"{" A "} x", 8, "something follows"},
    {"{" A "}\x01", 8, "something follows"},
    {"{" A " " A "}", 8, "does not end"},
    {"{" A ";}", 8, "does not end"},
    {"{" A "}/* text */", 8, "something follows"},
    {"{// text\n" A "}", 8, NAMED},
    {"{\"a\":[]}", 0, "not described by an object"},
    {"{\"a\":null}", 0, "not described by an object"},
    {"{\"a\":1}", 0, "not described by an object"},
    {"{\"a\":\"F32\"}", 0, "not described by an object"},
    {"{\"a\"}", 0, NAMED},
    {"{\"a\" {}}", 0, NAMED},
    {"{a:{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, NAMED},
    {"{'a':{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, NAMED},
    {"{1:{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, NAMED},
    {"{\"a\":{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{", 0, FIELD},
    /* fields */
    {"{\"a\":{}}", 0, FIELD},
    {"{\"a\":{\"dtype\":\"F32\"}}", 0, "needs dtype"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", 8, "needs dtype"},
    {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,8]}}", 8, "needs dtype"},
    {"{\"a\":{\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "needs dtype"},
    {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8,
     "twice"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "twice"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8],\"data_offsets\":[0,8]}}", 8,
     "twice"},
    {"{\"a\":{\"dtype\":\"F32\",\"\\u0073hape\":[2],\"shape\":[2],\"data_offsets\":[0,8]}}", 8,
     "twice"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8],\"extra\":1}}", 8, "unknown"},
    {"{\"a\":{\"Dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "unknown"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"offsets\":[0,8]}}", 8, "unknown"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets_\":[0,8]}}", 8, "unknown"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"a_long_field_name\":[0,8]}}", 8, FIELD},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8],}}", 8, FIELD},
    {"{\"a\":{\"dtype\":\"F32\" \"shape\":[2],\"data_offsets\":[0,8]}}", 8, "needs dtype"},
    /* dtypes */
    {"{" T("a", "F64", "[1]", "[0,8]") "}", 8, "not supported"},
    {"{" T("a", "I32", "[2]", "[0,8]") "}", 8, "not supported"},
    {"{" T("a", "BOOL", "[8]", "[0,8]") "}", 8, "not supported"},
    {"{" T("a", "F8_E4M3", "[8]", "[0,8]") "}", 8, "not supported"},
    {"{" T("a", "f32", "[2]", "[0,8]") "}", 8, "not supported"},
    {"{" T("a", "F32 ", "[2]", "[0,8]") "}", 8, "not supported"},
    {"{" T("a", "", "[2]", "[0,8]") "}", 8, "not supported"},
    {"{" T("a", "F33", "[2]", "[0,8]") "}", 8, "not supported"},
    {"{" T("a", "F32F32F32F32F32F32", "[2]", "[0,8]") "}", 8, "short string"},
    {"{" T("a", "F32\\u0000", "[2]", "[0,8]") "}", 8, "short string"},
    {"{\"a\":{\"dtype\":32,\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "short string"},
    {"{\"a\":{\"dtype\":null,\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "short string"},
    {"{\"a\":{\"dtype\":[\"F32\"],\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "short string"},
    /* shapes */
    {SHAPE("[4194305,4194305,211106198978564]"), 8, "overflow"},
    {SHAPE("[9223372036854775807]"), 8, "overflow"},
    {SHAPE("[4294967296,4294967296]"), 8, "overflow"},
    {SHAPE("[0,4294967296,4294967296]"), 8, "overflow"},
    {SHAPE("[9223372036854775808]"), 8, LIST},
    {SHAPE("[18446744073709551618]"), 8, LIST},
    {SHAPE("[-2]"), 8, LIST},
    {SHAPE("[-1,-2]"), 8, LIST},
    {SHAPE("[-0]"), 8, LIST},
    {SHAPE("[+2]"), 8, LIST},
    {SHAPE("[02]"), 8, LIST},
    {SHAPE("[00]"), 8, LIST},
    {SHAPE("[2.0]"), 8, LIST},
    {SHAPE("[2.5]"), 8, LIST},
    {SHAPE("[2e0]"), 8, LIST},
    {SHAPE("[0x2]"), 8, LIST},
    {SHAPE("[\\\"2\\\"]"), 8, LIST},
    {SHAPE("[null]"), 8, LIST},
    {SHAPE("[true,2]"), 8, LIST},
    {SHAPE("[[2]]"), 8, LIST},
    {SHAPE("[2,]"), 8, LIST},
    {SHAPE("[,2]"), 8, LIST},
    {SHAPE("[2 1]"), 8, LIST},
    {SHAPE("[2"), 8, LIST},
    {SHAPE("2"), 8, LIST},
    {SHAPE("{}"), 8, LIST},
    {SHAPE("null"), 8, LIST},
    {SHAPE("[NaN]"), 8, LIST},
    {SHAPE("[Infinity]"), 8, LIST},
    {SHAPE("[1,1,1,1,1,1,1,1,2]"), 8, "8 dimensions"},
    {SHAPE("[]"), 8, AGREE},
    {SHAPE("[0]"), 8, AGREE},
    {SHAPE("[1]"), 8, AGREE},
    {SHAPE("[3]"), 8, AGREE},
    {SHAPE("[2,2]"), 8, AGREE},
    {"{" T("a", "F16", "[2]", "[0,8]") "}", 8, AGREE},
    {"{" T("a", "F4", "[17]", "[0,8]") "}", 8, AGREE},
    /* offsets */
    {OFFSETS("[8,0]"), 8, "reversed"},
    {OFFSETS("[0,9]"), 8, "past the end"},
    {OFFSETS("[0,8]"), 7, "past the end"},
    {OFFSETS("[0,8]"), 0, "past the end"},
    {OFFSETS("[8,16]"), 8, "past the end"},
    {OFFSETS("[0,9223372036854775807]"), 8, "past the end"},
    {OFFSETS("[9223372036854775800,9223372036854775807]"), 8, "past the end"},
    {OFFSETS("[0,9223372036854775808]"), 8, TWO},
    {OFFSETS("[0,18446744073709551616]"), 8, TWO},
    {OFFSETS("[-8,0]"), 8, TWO},
    {OFFSETS("[0,-8]"), 8, TWO},
    {OFFSETS("[0,8.0]"), 8, TWO},
    {OFFSETS("[0,8e0]"), 8, TWO},
    {OFFSETS("[0,8.00000000000000001]"), 8, TWO},
    {OFFSETS("[]"), 8, TWO},
    {OFFSETS("[8]"), 8, TWO},
    {OFFSETS("[0,8,8]"), 8, TWO},
    {OFFSETS("[0,8"), 8, TWO},
    {OFFSETS("null"), 8, TWO},
    {OFFSETS("8"), 8, TWO},
    {OFFSETS("[1,9]"), 9, "between"},
    {OFFSETS("[0,8]"), 9, "trailing"},
    {OFFSETS("[0,8]"), 4096, "trailing"},
    {OFFSETS("[0,4]"), 8, AGREE},
    {OFFSETS("[4,8]"), 8, AGREE},
    {"{" T("a", "F32", "[0]", "[4,4]") "}", 8, "between"},
    {"{" T("a", "F32", "[0]", "[0,0]") "}", 8, "trailing"},
    {"{}", 8, "trailing"},
    {"{\"__metadata__\":{}}", 8, "trailing"},
    /* coverage by several */
    {"{" A "," T("b", "F32", "[2]", "[0,8]") "}", 8, "overlaps"},
    {"{" A "," T("b", "F32", "[2]", "[4,12]") "}", 12, "overlaps"},
    {"{" A "," T("b", "F32", "[2]", "[0,8]") "}", 16, "overlaps"},
    {"{" A "," T("b", "F32", "[2]", "[12,20]") "}", 20, "between"},
    {"{" A "," T("b", "F32", "[2]", "[8,16]") "}", 20, "trailing"},
    {"{" A "," T("b", "F32", "[0]", "[4,4]") "}", 8, "overlaps"},
    {"{" A "," T("b", "F32", "[0]", "[12,12]") "}", 12, "between"},
    {"{" T("b", "U8", "[7]", "[0,7]") "," T("a", "F32", "[2]", "[8,16]") "}", 16, "between"},
    {"{" A "," T("b", "XYZ", "[2]", "[4,12]") "}", 12, "overlaps"},
    {"{" A "," T("b", "XYZ", "[2]", "[8,17]") "}", 16, "past the end"},
    {"{" A "," T("b", "F32", "[3]", "[8,16]") "}", 16, AGREE},
    /* names */
    {"{" A "," A "}", 8, "comes twice"},
    {"{" A "," T("a", "F32", "[2]", "[8,16]") "}", 16, "comes twice"},
    {"{" A "," T("\\u0061", "F32", "[2]", "[8,16]") "}", 16, "comes twice"},
    {"{" T("\xc3\xa9", "F32", "[2]", "[0,8]") "," T("\\u00e9", "F32", "[2]", "[8,16]") "}", 16,
     "comes twice"},
    {"{" T("b", "U8", "[0]", "[0,0]") "," A "," T("b", "U8", "[0]", "[8,8]") "}", 8, "comes twice"},
    {NAME("a\\u0000b"), 8, NAMED},
    {NAME("a\x01"), 8, NAMED},
    {NAME("a\n"), 8, NAMED},
    {NAME("a\\n"), 8, NAMED},
    {NAME("\\u001b[2J"), 8, NAMED},
    {NAME("\\u007f"), 8, NAMED},
    {NAME("\xff"), 8, NAMED},
    {NAME("\xc0\x80"), 8, NAMED},
    {NAME("\xc3"), 8, NAMED},
    {NAME("\xe2\x82"), 8, NAMED},
    {NAME("\xed\xa0\x80"), 8, NAMED},
    {NAME("\xf4\x90\x80\x80"), 8, NAMED},
    {NAME("\x80"), 8, NAMED},
    {NAME("\\ud800"), 8, NAMED},
    {NAME("\\udc00"), 8, NAMED},
    {NAME("\\ud800\\u0061"), 8, NAMED},
    {NAME("\\u12"), 8, NAMED},
    {NAME("\\u00g1"), 8, NAMED},
    {NAME("\\x61"), 8, NAMED},
    {NAME("\\a"), 8, NAMED},
    {NAME("a\\"), 8, NAMED},
    {"{\"a", 0, NAMED},
    {"{\"a\\", 0, NAMED},
    {"{\"a\\u", 0, NAMED},
    /* metadata */
    {"{\"__metadata__\":{\"x\":1}," A "}", 8, "nothing but strings"},
    {"{\"__metadata__\":{\"x\":null}," A "}", 8, "nothing but strings"},
    {"{\"__metadata__\":{\"x\":{}}," A "}", 8, "nothing but strings"},
    {"{\"__metadata__\":{\"x\":[\"y\"]}," A "}", 8, "nothing but strings"},
    {"{\"__metadata__\":{\"x\"}," A "}", 8, "nothing but strings"},
    {"{\"__metadata__\":{\"x\":\"y\",}," A "}", 8, "nothing but strings"},
    {"{\"__metadata__\":{\"x\":\"y\"", 8, "does not end"},
    {"{\"__metadata__\":[]," A "}", 8, "not an object"},
    {"{\"__metadata__\":\"x\"," A "}", 8, "not an object"},
    {"{\"__metadata__\":null," A "}", 8, "not an object"},
    {"{\"__metadata__\":{},\"__metadata__\":{}," A "}", 8, "comes twice"},
    {"{\"__metadata__\":{},\"\\u005f_metadata__\":{}," A "}", 8, "comes twice"},
    {TEXT("\xff"), 8, "nothing but strings"},
    {TEXT("\x02"), 8, "nothing but strings"},
    {TEXT("\\q"), 8, "nothing but strings"},
};

#undef A
#undef SHAPE
#undef OFFSETS
#undef NAME
#undef TEXT
#undef FIELD
#undef LIST
#undef TWO
#undef AGREE
#undef NAMED

/* Eight bytes of length and what follows them. */
typedef struct hostile_prefix {
  const char *bytes;
  size_t count;
  const char *says;
} hostile_prefix_t;

#define B(text) text, sizeof text - 1
static const hostile_prefix_t hostile_safetensors_prefixes[] = {
    {B(""), "too short"},
    {B("\x02"), "too short"},
    {B("\x02\x00\x00\x00\x00\x00\x00"), "too short"},
    {B("\x00\x00\x00\x00\x00\x00\x00\x00"), "too short"},
    {B("\x02\x00\x00\x00\x00\x00\x00\x00{"), "too short"},
    {B("\x00\x00\x00\x00\x00\x00\x00\x00{}"), "cut short"},
    {B("\x01\x00\x00\x00\x00\x00\x00\x00{}"), "cut short"},
    {B("\x03\x00\x00\x00\x00\x00\x00\x00{}"), "claims 3 bytes"},
    {B("\x00\x00\x00\x00\x01\x00\x00\x00{}{}"), "claims 4294967296 bytes"},
    {B("\xff\xff\xff\xff\xff\xff\xff\xff{}{}"), "claims 18446744073709551615 bytes"},
    {B("\xf8\xff\xff\xff\xff\xff\xff\xff{}{}"), "claims 18446744073709551608 bytes"},
    {B("\xff\xff\xff\xff\xff\xff\xff\x7f{}{}"), "claims 9223372036854775807 bytes"},
    {B("\x00\x00\x00\x00\x00\x00\x00\x80{}{}"), "claims 9223372036854775808 bytes"},
    {B("\x00\xe1\xf5\x05\x00\x00\x00\x00{}{}"), "claims 100000000 bytes"},
    {B("\x00\x00\x00\x00\x00\x00\x00\x02{}{}"), "claims 144115188075855872 bytes"},
    {B("\x93NUMPY\x01\x00 an array, not safetensors"), "claims"},
    {B("PK\x03\x04\x14\x00\x00\x00 a zip of tensors"), "claims"},
    {B("{\"a\":{\"dtype\":\"F32\"}}"), "claims"},
};
#undef B

static inline unsigned char *hostile_safetensors_file(const char *json, int64_t data_bytes,
                                                      size_t *file_bytes) {
  size_t json_bytes = strlen(json);
  *file_bytes = 8 + json_bytes + (size_t)data_bytes;
  unsigned char *file = calloc(1, *file_bytes);
  if (!file)
    abort();
  for (size_t i = 0; i < 8; i++)
    file[i] = (unsigned char)((uint64_t)json_bytes >> 8 * i);
  memcpy(file + 8, json, json_bytes);
  return file;
}

#endif
