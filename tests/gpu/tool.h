/* Included before all else in a program's own file (-include): its main() becomes the function
 * TOOL, so that several programs make one file (tools.c). */
int TOOL(int argc, char **argv);
#define main TOOL
