// The same program in C++: the public headers and their use compile in both languages.
#include "consumer.c"
