// Package version determines the version of Myriad in an executable.
package version

import (
	"runtime/debug"
	"slices"
	"strings"
)

// commit is the source commit, for a build without version control information. The build sets it with -ldflags.
var commit string

// MyriadVersion returns the version of Myriad in this executable, or "" if it is unknown.
func MyriadVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return commit
	}
	return myriadVersionOrCommit(info, commit)
}

func myriadVersionOrCommit(info *debug.BuildInfo, fallbackCommit string) string {
	const path, unstamped, shown = "github.com/myriad-go/myriad", "(devel)", 12
	if info.Main.Path != path && !strings.HasPrefix(info.Main.Path, path+"/") {
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
	revision, modified := stamp("vcs.revision"), stamp("vcs.modified") == "true"
	if revision == "" {
		revision = fallbackCommit
	}
	if info.Main.Version != unstamped && info.Main.Version != "" || revision == "" {
		return info.Main.Version
	}
	if revision = revision[:min(len(revision), shown)]; modified {
		revision += "+dirty"
	}
	return revision
}
