//go:build !unix

package sample

// OwnCPUTime returns the zero Process, because the processor time is unknown on this system.
func OwnCPUTime() Process { return Process{} }
