//go:build !linux

package enginetest

import "time"

// cpuTime is not available on this system.
func cpuTime(*testEnv) time.Duration { return 0 }
