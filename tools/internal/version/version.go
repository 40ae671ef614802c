// Package version tells which Myriad an executable has.
package version

import (
	"runtime/debug"
	"slices"
	"strings"
)

// commit is what -ldflags "-X github.com/myriad-go/myriad/tools/internal/version.commit=..." of a
// build says that it is of: for builds that Go stamps with nothing, such as those from a
// tarball, with -buildvcs=false and by "go run".
var commit string

// Myriad is the version of the Myriad that this executable has, "" where it is not known.
func Myriad() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return commit
	}
	return in(info, commit)
}

// in is the version of Myriad, or the commit that it was built of, where there is that
// alone.
func in(info *debug.BuildInfo, commit string) string {
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
		revision = commit
	}
	if info.Main.Version != unstamped && info.Main.Version != "" || revision == "" {
		return info.Main.Version
	}
	if revision = revision[:min(len(revision), shown)]; modified {
		revision += "+dirty"
	}
	return revision
}
