//go:build !unix

package sample

// OwnCPUTime returns 0, because the processor time of this process is unknown on this system.
func OwnCPUTime() Process { return Process{} }
