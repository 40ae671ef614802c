package models_test

import (
	"flag"
	"os"
	"testing"
)

// TestMain lets all the cases of the suite that wait for times wait at once, not as
// many as there are processors.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "32"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}
