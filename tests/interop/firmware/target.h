/* What every emulated machine offers. */
#ifndef TARGET_H
#define TARGET_H

#include <stdint.h>

void target_put(char letter);
void target_stop(void);

#endif
