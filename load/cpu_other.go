//go:build !unix

package load

import "time"

// cpuTime is the processor time that this process has used; 0 as it is not
// known on this system.
func cpuTime() (user, system time.Duration) { return 0, 0 }
