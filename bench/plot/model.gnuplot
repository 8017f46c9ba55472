# model.gnuplot: predicted share of ideal by GPUs. `data`: a block of (GPUs, efficiency) for each case, named.
set terminal svg size 640,380 font "sans-serif,12" background "white"
set output picture
set logscale x 2
set xrange [2:4096]
set yrange [0:105]
set xtics nomirror
set ytics nomirror
set border 3
set grid ytics lc rgb "#dddddd"
set key left bottom
set xlabel "GPUs (eight to a node)"
set ylabel "predicted, % of ideal"
set title "32/8 heads of 128, bf16; NVLink inside a node, 400 Gbit/s a GPU between" font ",11"
plot for [block=0:4] data index block using 1:(100 * $2) with linespoints pointtype 7 pointsize 0.5 \
     linewidth 2 title columnheader(1)
