//go:build !unix

package sample

// OwnCPU returns 0: the processor time of this process is unknown on this system.
func OwnCPU() Process { return Process{} }
