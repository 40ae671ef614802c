// Command release prepares and checks a release of this repository's modules. It must be run in the root of the
// checkout:
//
//	go run ./tools/internal/release -check      check that the modules can be published as they are
//	go run ./tools/internal/release v0.2.0      require each other at v0.2.0, check, print the git commands
//	go run ./tools/internal/release -tidy       tidy each go.mod and go.sum
//
// The modules require each other at the version of the next release, which no proxy has yet. The check therefore writes
// a module proxy from the checkout and uses that proxy with GOWORK=off.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/semver"
)

func main() {
	check := flag.Bool("check", false, "check that the modules can be published")
	tidy := flag.Bool("tidy", false, "tidy each go.mod and go.sum")
	flag.Parse()
	if err := checkTidyOrSetVersion(*check, *tidy, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func checkTidyOrSetVersion(check, tidy bool, versionArgs []string) error {
	switch {
	case len(versionArgs) == 1 && !check && !tidy:
		if m := semver.Major(versionArgs[0]); m != "v0" && m != "v1" {
			return fmt.Errorf("version %q; expected one such as v0.2.0, of major version 0 or 1", versionArgs[0])
		}
		if err := setVersionInModAndWorkFiles(".", versionArgs[0]); err != nil {
			return err
		}
	case len(versionArgs) > 0 || check == tidy:
		return errors.New("expected -check, -tidy or a version such as v0.2.0")
	}
	w, err := newEnvServingCheckout(".")
	if err != nil {
		return err
	}
	defer w.removeTempDir()
	if tidy {
		return w.tidyThenDropOwnSums()
	}
	if err := w.runAllChecks(os.Stdout); err != nil {
		return err
	}
	if len(versionArgs) == 1 {
		v := versionArgs[0]
		fmt.Printf("\nTo publish:\n\tgit commit -am %q\n\tgit tag %s && git tag hub/%[1]s && git tag tools/%[1]s\n\tgit push --atomic origin main %[1]s hub/%[1]s tools/%[1]s\n", v, v)
	}
	return nil
}

// releaseEnv is an environment for the go command. In this environment, the go command gets the published modules of
// this repository from the checkout.
type releaseEnv struct {
	checkout, version string
	dir               string // temporary directory: the proxy, a module cache, a program
	env               []string
}

func newEnvServingCheckout(checkout string) (*releaseEnv, error) {
	version, err := checkGoModFiles(checkout)
	if err != nil {
		return nil, err
	}
	out, err := exec.Command("go", "env", "GOMODCACHE", "GOPROXY").Output()
	if err != nil {
		return nil, fmt.Errorf("go env: %w", err)
	}
	cache, upstream, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	dir, err := os.MkdirTemp("", "release")
	if err != nil {
		return nil, err
	}
	w := &releaseEnv{checkout: checkout, version: version, dir: dir}
	if err := writeModuleProxy(filepath.Join(dir, "proxy"), checkout, version); err != nil {
		w.removeTempDir()
		return nil, err
	}
	// The module cache of this machine spares repeated downloads.
	proxies := "file://" + filepath.Join(dir, "proxy") + ",file://" + filepath.Join(cache, "cache", "download") + "," + upstream
	w.env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-modcacherw -trimpath", "GOPROXY="+proxies, "GONOSUMDB="+root+","+root+"/*",
		"GOMODCACHE="+filepath.Join(dir, "cache"), "GOBIN="+filepath.Join(dir, "bin"))
	return w, nil
}

func (w *releaseEnv) removeTempDir() { os.RemoveAll(w.dir) }

func (w *releaseEnv) runGoCommand(dir string, args ...string) (stdout string, err error) {
	cmd := exec.Command("go", args...)
	var stderr strings.Builder
	cmd.Dir, cmd.Env, cmd.Stderr = dir, w.env, &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("go %s in %s: %w\n%s%s", strings.Join(args, " "), dir, err, out, stderr.String())
	}
	return string(out), err
}

func (w *releaseEnv) tidyThenDropOwnSums() error {
	for _, folder := range slices.Concat(released, private) {
		dir := filepath.Join(w.checkout, folder)
		if _, err := w.runGoCommand(dir, "mod", "tidy"); err != nil {
			return err
		}
		name := filepath.Join(dir, "go.sum")
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if err := os.WriteFile(name, []byte(dropSumsOfOwnModules(string(text))), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func dropSumsOfOwnModules(goSum string) string {
	lines := strings.SplitAfter(goSum, "\n")
	return strings.Join(slices.DeleteFunc(lines, func(l string) bool {
		return strings.HasPrefix(l, root+" ") || strings.HasPrefix(l, root+"/")
	}), "")
}

func (w *releaseEnv) runAllChecks(log *os.File) error {
	for _, step := range []struct {
		name string
		run  func() error
	}{
		{"go.mod and go.sum are tidy", w.checkModulesTidy},
		{"the library requires golang.org/x/sys only", w.checkLibraryDependencies},
		{"a program outside the repository uses the library and the hub", w.checkProgramUsingModules},
		{"go install of the command", w.checkInstallOfCommand},
	} {
		if err := step.run(); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
		fmt.Fprintf(log, "ok  %s (%s)\n", step.name, w.version)
	}
	return nil
}

func (w *releaseEnv) checkModulesTidy() error {
	for _, folder := range slices.Concat(released, private) {
		dir := filepath.Join(w.checkout, folder)
		out, err := w.runGoCommand(dir, "mod", "tidy", "-diff")
		changed := slices.DeleteFunc(strings.Split(out, "\n"), func(l string) bool {
			return !strings.HasPrefix(l, "+") && !strings.HasPrefix(l, "-") || strings.HasPrefix(l, "+++") || strings.HasPrefix(l, "---") ||
				strings.HasPrefix(l[1:], root+" ") || strings.HasPrefix(l[1:], root+"/")
		})
		if len(changed) > 0 {
			return fmt.Errorf("%s: go mod tidy would change it; run go run ./tools/internal/release -tidy:\n%s", dir, strings.Join(changed, "\n"))
		}
		if err != nil && out == "" {
			return err
		}
	}
	return nil
}

func (w *releaseEnv) checkLibraryDependencies() error {
	out, err := w.runGoCommand(w.checkout, "list", "-m", "all")
	if err != nil {
		return err
	}
	if lines := strings.Fields(out); len(lines) != 3 || lines[0] != root || lines[1] != "golang.org/x/sys" {
		return fmt.Errorf("go list -m all prints %q; expected %s and golang.org/x/sys", out, root)
	}
	return nil
}

const userProgram = `package main

import (
	"fmt"

	"github.com/myriad-go/myriad/hub"
	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/web"
)

func main() {
	fmt.Printf("%T %T %T\n", &tcp.Server{}, &web.WebSocket{}, &hub.Hub{})
}
`

func (w *releaseEnv) checkProgramUsingModules() error {
	dir := filepath.Join(w.dir, "user")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte(userProgram), 0o644); err != nil {
		return err
	}
	for _, args := range [][]string{{"mod", "init", "example.com/user"}, {"get", root + "@" + w.version}, {"get", root + "/hub@" + w.version}} {
		if _, err := w.runGoCommand(dir, args...); err != nil {
			return err
		}
	}
	out, err := w.runGoCommand(dir, "run", ".")
	if err == nil && out != "*tcp.Server *web.WebSocket *hub.Hub\n" {
		err = fmt.Errorf("the program printed %q", out)
	}
	return err
}

func (w *releaseEnv) checkInstallOfCommand() error {
	if _, err := w.runGoCommand(w.dir, "install", root+"/tools/myriad@"+w.version); err != nil {
		return err
	}
	out, err := exec.Command(filepath.Join(w.dir, "bin", "myriad"), "version").CombinedOutput()
	if err == nil && !strings.Contains(string(out), w.version) {
		err = fmt.Errorf("myriad version printed %q; expected %s", out, w.version)
	}
	return err
}
