//go:build !linux

package sock

import "time"

// Sleep pauses for d.
func Sleep(d time.Duration) { time.Sleep(d) }
