//go:build !linux

package enginetest

import "time"

// cpuTime is not known here.
func cpuTime(*testEnv) time.Duration { return 0 }
