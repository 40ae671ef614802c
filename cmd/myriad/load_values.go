package main

import (
	"errors"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// value is a flag that a function reads.
type value[T any] struct {
	to    *T
	parse func(string) (T, error)
	text  string
}

func (v *value[T]) Set(text string) error {
	read, err := v.parse(text)
	if err != nil {
		return err
	}
	*v.to, v.text = read, text
	return nil
}

func (v *value[T]) String() string { return v.text }
func (v *value[T]) Type() string   { return "value" }

var _ pflag.Value = (*value[int])(nil)

// flag adds a flag that a function reads; short is "" for none.
func flag[T any](flags *pflag.FlagSet, to *T, parse func(string) (T, error), name, short, help string) {
	flags.VarP(&value[T]{to: to, parse: parse}, name, short, help)
}

// oneOf reads one of a few words.
func oneOf(words ...string) func(string) (string, error) {
	return func(text string) (string, error) {
		for _, w := range words {
			if w == text {
				return text, nil
			}
		}
		return "", wanted(strings.Join(words, " or "))
	}
}

// loadFlagError says what is wrong with a flag of load or hold, and what was
// expected.
func loadFlagError(cmd *cobra.Command, err error) error {
	invalid, ok := errors.AsType[*pflag.InvalidValueError](err)
	if want, found := errors.AsType[wanted](err); ok && found {
		return usagef("--%s is %q; %w", invalid.GetFlag().Name, invalid.GetValue(), want)
	}
	return flagError(cmd, err)
}
