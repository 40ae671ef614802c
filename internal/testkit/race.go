package testkit

import (
	"runtime/debug"
	"slices"
)

// RaceEnabled reports whether this program was built with the race detector, which changes its speed and memory.
var RaceEnabled = func() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}()
