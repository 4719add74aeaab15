/* What compilers call even where there is no C library. */
#include <stddef.h>

void *memset(void *to, int value, size_t num_bytes);
void *memcpy(void *to, const void *from, size_t num_bytes);

void *memset(void *to, int value, size_t num_bytes)
{
    volatile unsigned char *byte = to; /* volatile, else this loop becomes a call of itself */
    while (num_bytes-- > 0u) {
        *byte++ = (unsigned char)value;
    }
    return to;
}

void *memcpy(void *to, const void *from, size_t num_bytes)
{
    volatile unsigned char *byte = to;
    const unsigned char *other = from;
    while (num_bytes-- > 0u) {
        *byte++ = *other++;
    }
    return to;
}
