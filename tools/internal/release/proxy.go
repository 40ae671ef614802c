package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"
)

const root = "github.com/myriad-go/myriad"

// released lists the directories of the published modules, each after the modules that it requires.
var released = []string{".", "hub", "tools"}

// private lists the folders of modules that are used only in a checkout.
var private = []string{"examples", "examples/grpc", "examples/mqtt", "hub/clients", "tools/browser", "tools/deploy", "tools/peers"}

func modulePathOfFolder(folder string) string {
	if folder == "." {
		return root
	}
	return root + "/" + folder
}

// writeModuleProxy writes a module proxy (GOPROXY=file://dir) that contains the published modules.
func writeModuleProxy(dir, checkout, version string) error {
	for _, folder := range released {
		mod := module.Version{Path: modulePathOfFolder(folder), Version: version}
		at := filepath.Join(dir, filepath.FromSlash(mod.Path), "@v")
		if err := os.MkdirAll(at, 0o755); err != nil {
			return err
		}
		goMod, err := os.ReadFile(filepath.Join(checkout, folder, "go.mod"))
		if err != nil {
			return err
		}
		for name, text := range map[string][]byte{
			"list":            []byte(version + "\n"),
			version + ".info": fmt.Appendf(nil, `{"Version":%q,"Time":"2026-01-01T00:00:00Z"}`, version),
			version + ".mod":  goMod,
		} {
			if err := os.WriteFile(filepath.Join(at, name), text, 0o644); err != nil {
				return err
			}
		}
		archive, err := os.Create(filepath.Join(at, version+".zip"))
		if err != nil {
			return err
		}
		err = zip.CreateFromDir(archive, mod, filepath.Join(checkout, folder))
		if closeErr := archive.Close(); err == nil {
			err = closeErr
		}
		if err != nil {
			return fmt.Errorf("%s: %w", mod.Path, err)
		}
	}
	return nil
}

// checkGoModFiles returns the version at which the go.mod files require the modules of this repository. All go.mod
// files must require the same version and contain no replace directive. Otherwise, checkGoModFiles returns an error.
func checkGoModFiles(checkout string) (commonVersion string, err error) {
	for _, folder := range slices.Concat(released, private) {
		name := filepath.Join(checkout, folder, "go.mod")
		f, err := parseGoModFile(name)
		if err != nil {
			return "", err
		}
		if len(f.Replace) > 0 {
			return "", fmt.Errorf("%s has a replace directive, which go install rejects; expected none", name)
		}
		if f.Module.Mod.Path != modulePathOfFolder(folder) {
			return "", fmt.Errorf("%s is module %s; expected %s", name, f.Module.Mod.Path, modulePathOfFolder(folder))
		}
		for _, r := range f.Require {
			if r.Mod.Path != root && !strings.HasPrefix(r.Mod.Path, root+"/") {
				continue
			}
			if commonVersion == "" {
				commonVersion = r.Mod.Version
			}
			if r.Mod.Version != commonVersion {
				return "", fmt.Errorf("%s requires %s; expected %s, as the other modules", name, r.Mod, commonVersion)
			}
		}
	}
	return commonVersion, nil
}

func setVersionInModAndWorkFiles(checkout, version string) error {
	for _, folder := range slices.Concat(released, private) {
		name := filepath.Join(checkout, folder, "go.mod")
		f, err := parseGoModFile(name)
		if err != nil {
			return err
		}
		for _, r := range f.Require {
			if r.Mod.Path == root || strings.HasPrefix(r.Mod.Path, root+"/") {
				if err := f.AddRequire(r.Mod.Path, version); err != nil {
					return err
				}
			}
		}
		text, err := f.Format()
		if err != nil {
			return err
		}
		if err := os.WriteFile(name, text, 0o644); err != nil {
			return err
		}
		if err := setAllReplaceVersions(filepath.Join(checkout, folder, "go.work"), version); err != nil {
			return err
		}
	}
	return nil
}

// setAllReplaceVersions sets the version of the replaced module in each replace directive of a go.work file. It does
// nothing if the file does not exist.
func setAllReplaceVersions(goWorkFile, version string) error {
	text, err := os.ReadFile(goWorkFile)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return err
	}
	f, err := modfile.ParseWork(goWorkFile, text, nil)
	if err != nil {
		return err
	}
	for _, r := range slices.Clone(f.Replace) {
		path, old, to := r.Old.Path, r.Old.Version, r.New.Path
		if err := f.DropReplace(path, old); err != nil {
			return err
		}
		if err := f.AddReplace(path, version, to, ""); err != nil {
			return err
		}
	}
	f.Cleanup()
	return os.WriteFile(goWorkFile, modfile.Format(f.Syntax), 0o644)
}

func parseGoModFile(name string) (*modfile.File, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	return modfile.Parse(name, text, nil)
}
