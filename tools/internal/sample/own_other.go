//go:build !unix

package sample

// OwnCPU returns the processor time that this process has used: 0, as it is not known on this
// system.
func OwnCPU() Process { return Process{} }
