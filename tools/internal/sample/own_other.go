//go:build !unix

package sample

// OwnCPU returns 0, because this system does not report the processor time of this process.
func OwnCPU() Process { return Process{} }
