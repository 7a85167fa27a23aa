#include <bags.h>
#include <stdio.h>
int main(void) { return printf("bags.h %s\n", bags_version()) < 0; }
