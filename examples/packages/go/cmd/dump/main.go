// Print a dataset or a Bag, for a comparison with other readers: dump PATH
//
// The lines are those that ../../../rust/examples/dump.rs states.
package main

import (
	"bufio"
	"fmt"
	"log"
	"os"
	"strings"

	"example.org/bags"
)

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func main() {
	log.SetFlags(0)
	if len(os.Args) != 2 {
		log.Fatal("usage: dump PATH")
	}
	path := os.Args[1]
	out := bufio.NewWriter(os.Stdout)
	if strings.HasSuffix(path, ".bag") {
		bag, err := bags.OpenBag(path, nil)
		check(err)
		defer bag.Close()
		fmt.Fprintf(out, "length\t%d\nfield\t0\tbytes\tblob\n", bag.Len())
		for index := uint64(0); index < bag.Len(); index++ {
			check(bag.View(index, func(blob []byte) error {
				_, err := fmt.Fprintf(out, "value\t%d\t0\t1\t%x\n", index, blob)
				return err
			}))
		}
		check(out.Flush())
		return
	}
	reader, err := bags.Open(path, nil)
	check(err)
	defer reader.Close()
	fmt.Fprintf(out, "length\t%d\n", reader.Len())
	for number, field := range reader.Fields() {
		fmt.Fprintf(out, "field\t%d\t%s\t%s\n", number, field.Type, field.Name)
	}
	for index := uint64(0); index < reader.Len(); index++ {
		for number, field := range reader.Fields() {
			count, err := reader.Items(index, field.Name)
			check(err)
			items := make([]string, count)
			for item := range items {
				check(reader.View(index, field.Name, uint64(item), func(blob []byte) error {
					items[item] = fmt.Sprintf("%x", blob)
					return nil
				}))
			}
			fmt.Fprintf(out, "value\t%d\t%d\t%d\t%s\n", index, number, count, strings.Join(items, ","))
		}
	}
	check(out.Flush())
}
