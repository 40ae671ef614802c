package doctor

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"
)

// file is a setting that is a file of the kernel's.
type file string

const sysctlRoot = "/proc/sys/"

func sysctlPath(name string) string { return sysctlRoot + strings.ReplaceAll(name, ".", "/") }

// maxSetting bounds what is read of a file; the longest, a list of ports, has at
// most 64 KiB here.
const maxSetting = 64 << 10

func (f file) read() (string, error) {
	in, err := os.Open(string(f))
	if err != nil {
		return "", f.explain(err, "")
	}
	defer in.Close()
	b, err := io.ReadAll(io.LimitReader(in, maxSetting+1))
	if err != nil {
		return "", f.explain(err, "")
	}
	if len(b) > maxSetting {
		return "", fmt.Errorf("%s has more than %d bytes", f, maxSetting)
	}
	return strings.TrimSpace(string(b)), nil
}

func (f file) write(value string) error {
	out, err := os.OpenFile(string(f), os.O_WRONLY, 0)
	if err != nil {
		return f.explain(err, value)
	}
	// An empty value is a line too: a write of nothing is none.
	_, err = out.WriteString(value + "\n")
	if err := errors.Join(err, out.Close()); err != nil {
		return f.explain(err, value)
	}
	return nil
}

// explain says what an error means of such a file.
func (f file) explain(err error, value string) error {
	here := "this kernel"
	if strings.HasPrefix(string(f), sysctlRoot+"net/") {
		here = "this kernel, or this network namespace,"
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s has no such setting (%w); where it is the machine's, as for a container, change it there", here, err)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		return fmt.Errorf("it takes root, and outside of containers and namespaces that may only read it: %w", err)
	case errors.Is(err, syscall.EINVAL), errors.Is(err, syscall.ERANGE):
		return fmt.Errorf("the kernel does not take the value %q: %w", value, err)
	}
	return err
}
