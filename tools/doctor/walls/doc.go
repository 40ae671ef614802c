// Package walls holds package doctor against real connections. It is tests only.
//
// Each test makes a small machine of its own, as far as the kernel has such a thing: a
// network namespace, limits of a process, control groups. In it one wall is set low.
// The doctor reads that machine and predicts at how many connections the wall stops a
// plan; then the command myriad serves there, or package net does, and real connections
// run into the wall. The count at which they stop must be the predicted one, the error
// must name the wall, and what the doctor says to change must move it.
//
// Walls that the kernel has once for the whole machine are in machine_linux_test.go:
// these tests change a setting of the machine for some seconds. A process of its own
// puts it back, also when the test is killed.
package walls
