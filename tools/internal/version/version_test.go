package version

import (
	"runtime/debug"
	"testing"
)

// TestVersion has executables of Myriad's own module, and of others.
func TestVersion(t *testing.T) {
	const commit = "0123456789abcdef0123456789abcdef01234567"
	own := func(version string, settings ...debug.BuildSetting) *debug.BuildInfo {
		return &debug.BuildInfo{Main: debug.Module{Path: "github.com/myriad-go/myriad/tools", Version: version}, Settings: settings}
	}
	revision, dirty := debug.BuildSetting{Key: "vcs.revision", Value: commit}, debug.BuildSetting{Key: "vcs.modified", Value: "true"}
	user := &debug.BuildInfo{Main: debug.Module{Path: "example.com/x", Version: "v9.0.0"}, Settings: []debug.BuildSetting{revision}}
	using := *user
	using.Deps = []*debug.Module{{Path: "example.com/y", Version: "v8.0.0"}, {Path: "github.com/myriad-go/myriad", Version: "v1.2.3"}}
	for _, test := range []struct {
		info   *debug.BuildInfo
		linked string
		want   string
	}{
		{own("(devel)"), "", "(devel)"},
		{own(""), "", ""}, // a test binary
		{own("(devel)", revision), "", "0123456789ab"},
		{own("(devel)", dirty, revision), "", "0123456789ab+dirty"},
		{own("v1.2.3", revision, dirty), "", "v1.2.3"},
		{own("(devel)"), "abcdef", "abcdef"},
		{own("(devel)"), "fedcba9876543210", "fedcba987654"},
		{own("(devel)", revision), "abcdef", "0123456789ab"},
		{own("v1.2.3"), "abcdef", "v1.2.3"},
		{user, "", ""},
		{&using, "abcdef", "v1.2.3"},
	} {
		if got := myriadVersionOrCommit(test.info, test.linked); got != test.want {
			t.Errorf("%s %s: got %q, want %q", test.info.Main.Path, test.info.Main.Version, got, test.want)
		}
	}
}
