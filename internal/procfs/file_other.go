//go:build !linux

package procfs

func readFile(string) ([]byte, error) { return nil, ErrNotAvailable }

func eachName(string, func(name string) error) error { return ErrNotAvailable }

func readLink(string) (string, error) { return "", ErrNotAvailable }
