package models_test

import (
	"flag"
	"os"
	"testing"
)

// TestMain runs more cases in parallel than there are processors, because most of them wait.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "16"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}
