package lab

import (
	"runtime/debug"
	"slices"
)

// version is that of the Myriad that this executable has, as far as it knows.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	return versionIn(info)
}

// versionIn is that of Myriad, or the commit that it was built of, where Go has stamped
// that alone.
func versionIn(info *debug.BuildInfo) string {
	const path, unstamped, shown = "github.com/myriad-go/myriad", "(devel)", 12
	if info.Main.Path != path {
		i := slices.IndexFunc(info.Deps, func(m *debug.Module) bool { return m.Path == path })
		if i < 0 {
			return ""
		}
		return info.Deps[i].Version
	}
	stamp := func(key string) string {
		for _, s := range info.Settings {
			if s.Key == key {
				return s.Value
			}
		}
		return ""
	}
	revision := stamp("vcs.revision")
	if info.Main.Version != unstamped || revision == "" {
		return info.Main.Version
	}
	if revision = revision[:min(len(revision), shown)]; stamp("vcs.modified") == "true" {
		revision += "+dirty"
	}
	return revision
}
