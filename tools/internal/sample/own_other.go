//go:build !unix

package sample

import "time"

// OwnCPU returns the processor time that this process has used; 0 as it is not
// known on this system.
func OwnCPU() (user, system time.Duration) { return 0, 0 }
