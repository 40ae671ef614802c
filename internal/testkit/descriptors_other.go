//go:build !linux

package testkit

import "math"

// descriptorLimit returns the maximum number, because the limit is unknown here.
func descriptorLimit() int { return math.MaxInt32 }
