/*
 * Where constants live and how they are read. AVR processors read their flash by instructions of its own: with 16-bit
 * addresses, or with 24-bit ones where there is more than 64 KB of it. All others read constants as any memory; they
 * may define HELIOMESH_FLASH_LIMIT, the bytes that tables must not exceed.
 */
#ifndef HELIOMESH_FLASH_H
#define HELIOMESH_FLASH_H

#if defined(__AVR__)
#include <avr/io.h>
#include <avr/pgmspace.h>
#define HELIOMESH_FLASH PROGMEM
#define HELIOMESH_FLASH_LIMIT FLASHEND
#if FLASHEND > 0xFFFF
#define HELIOMESH_READ_U8(table, entry) pgm_read_byte_far(pgm_get_far_address(table) + (entry))
#define HELIOMESH_READ_U16(table, entry) pgm_read_word_far(pgm_get_far_address(table) + ((entry) * 2u))
#define HELIOMESH_READ_U32(table, entry) pgm_read_dword_far(pgm_get_far_address(table) + ((entry) * 4u))
#else
#define HELIOMESH_READ_U8(table, entry) pgm_read_byte(&(table)[entry])
#define HELIOMESH_READ_U16(table, entry) pgm_read_word(&(table)[entry])
#define HELIOMESH_READ_U32(table, entry) pgm_read_dword(&(table)[entry])
#endif
#else
#define HELIOMESH_FLASH
#ifndef HELIOMESH_FLASH_LIMIT
#define HELIOMESH_FLASH_LIMIT 0xFFFFFFFFu
#endif
#define HELIOMESH_READ_U8(table, entry) ((table)[entry])
#define HELIOMESH_READ_U16(table, entry) ((table)[entry])
#define HELIOMESH_READ_U32(table, entry) ((table)[entry])
#endif

#if HELIOMESH_FLASH_BYTES > HELIOMESH_FLASH_LIMIT
#error "The plan's tables are larger than the flash; lower -o levels or -o hops"
#endif

#endif
